"""The languages in which a cluster may be described, and `read`, which takes any of them.

`DIALECTS` is the whole list: a new dialect is one new file and one line there. Which dialect a text is in is decided by its
words alone, never by its file name: see `_choose`.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

from tfdist.cluster import Cluster
from tfdist.dialects import cloudml, singa, tf_config
from tfdist.dialects.cloudml_fields import OPTIONS, TIERS
from tfdist.dialects.text import Document, check_text, close, decode, is_json, load, read_bytes
from tfdist.errors import ClusterError, Source, nearest


class Dialect(Protocol):
    """What the file of a dialect offers."""

    NAME: str
    """What it is called, as in `--to`."""
    EXAMPLE: str
    """What it looks like, for the message about a text that is in none of them."""
    WORDS: frozenset[str]
    """The names that occur in it, by which it is recognised."""
    IS_MAPPING: bool
    """Whether it is JSON or YAML; the others read the text themselves."""

    def parse(self, document: Document, *, hostfile: str | None = None, options: Mapping[str, Any] | None = None) -> Cluster:
        """Reads a description. `hostfile` and `options` are only given to the dialect that has them."""
        ...

    def write(self, cluster: Cluster) -> str:
        """Writes a description; raises ClusterError where the dialect has no words for the cluster."""
        ...


DIALECTS: dict[str, Dialect] = {
    dialect.NAME: dialect
    for dialect in (
        cast(Dialect, singa),
        cast(Dialect, cloudml),
        cast(Dialect, tf_config),
    )
}

WAYS = (
    "give a SINGA job.conf, a CloudML config.yaml or a TF_CONFIG file with --cluster, a scale tier with --tier, "
    "or set TF_CONFIG in the environment"
)

_TEXT_MARKS = ("\n", "{", ": ")


def read(
    source: object = None,
    *,
    hostfile: "str | os.PathLike[str] | None" = None,
    overrides: Mapping[str, Any] | None = None,
) -> Cluster:
    """Reads a cluster description in any dialect.

    Args:
        source: one of
            a path, or text (a str with a line break, a `{` or a `: ` in it; bytes are always text);
            the name of a CloudML scale tier, `STANDARD_1` or `standard-1`;
            a dict: TF_CONFIG, a cluster specification, a CloudML Job or TrainingInput;
            a `tf.train.ClusterSpec` or a `ClusterResolver`;
            a `Cluster`, returned as it is;
            None: TF_CONFIG of the environment.
        hostfile: path of the hosts of a SINGA cluster, one per line.
        overrides: CloudML options that were given as flags and win over the file (`cloudml_fields.OPTIONS`); None means absent.
            `job_dir` goes with every dialect.

    Raises:
        ClusterError: when the description cannot be used; its text is one line that says where and why.
        TypeError: when `source` is of none of these types.
    """
    options = {name: value for name, value in (overrides or {}).items() if value is not None}
    for name in options:
        if name not in OPTIONS:
            raise Source("flags", f"--{name}").error(f"there is no such option{nearest(name, OPTIONS)}")
    job_dir = _job_dir(options.pop("job_dir", None))
    hosts = None if hostfile is None else os.fspath(hostfile)
    if isinstance(source, Cluster):
        if hosts is not None or options:
            raise _does_not_take(source.source, hosts, options)
        cluster = source
    else:
        dialect, document = _find(source, options)
        cluster = _parse(dialect, document, hosts, options)
    return cluster if job_dir is None else dataclasses.replace(cluster, job_dir=job_dir)


def from_environment(overrides: Mapping[str, Any] | None = None) -> Cluster | None:
    """The cluster of TF_CONFIG, or None where TF_CONFIG is not set or empty. Raises ClusterError for a bad one."""
    text = os.environ.get("TF_CONFIG", "").strip()
    return read(overrides=overrides) if text and text != "{}" else None


def _parse(dialect: Dialect, document: Document, hosts: str | None, options: dict[str, Any]) -> Cluster:
    takes_hosts, takes_options = dialect is DIALECTS["singa"], dialect is DIALECTS["cloudml"]
    if (hosts is not None and not takes_hosts) or (options and not takes_options):
        bad_hosts = hosts if not takes_hosts else None
        raise _does_not_take(Source(dialect.NAME, document.name), bad_hosts, {} if takes_options else options)
    if takes_hosts:
        return dialect.parse(document, hostfile=hosts)
    if takes_options:
        return dialect.parse(document, options=options)
    return dialect.parse(document)


def _job_dir(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    raise TypeError(f"job_dir is a path, not a {type(value).__name__}")


def _does_not_take(source: Source, hosts: str | None, options: Iterable[str]) -> ClusterError:
    if hosts is not None:
        return source.error(
            f"a host file goes with a SINGA description, this one is {source.dialect}; leave the host file out",
            field="--hostfile",
        )
    flag = next(iter(options))
    return source.error(
        f"this option changes a CloudML description, this one is {source.dialect}; change the description instead",
        field=f"--{flag}",
    )


def _find(source: object, options: Mapping[str, Any]) -> tuple[Dialect, Document]:
    """Returns the dialect of a source, and what to parse."""
    if source is None:
        return _from_environment(options)
    if isinstance(source, str):
        tier = cloudml.tier_name(source)
        if tier is not None:
            return DIALECTS["cloudml"], Document(source.strip(), mapping={"scaleTier": tier})
        if any(mark in source for mark in _TEXT_MARKS) or not source.strip():
            return _from_text(source, "<text>")
        return _from_file(source)
    if isinstance(source, bytes | bytearray):
        return _from_text(decode(bytes(source), Source("text", "<text>")), "<text>")
    if isinstance(source, os.PathLike):
        return _from_file(os.fspath(source))
    if isinstance(source, Mapping):
        return _from_mapping(Document("<dict>", mapping=source), Source("dict", "<dict>"))
    name = f"<{type(source).__name__}>"
    if callable(getattr(source, "as_dict", None)):
        return DIALECTS["tf_config"], Document(name, mapping={"cluster": cast(Any, source).as_dict()})
    if callable(getattr(source, "cluster_spec", None)):
        return DIALECTS["tf_config"], Document(name, mapping=_from_resolver(source))
    raise TypeError(
        f"a cluster description is a path, text, a dict, a ClusterSpec, a ClusterResolver or a Cluster, "
        f"not a {type(source).__name__}"
    )


def _from_environment(options: Mapping[str, Any]) -> tuple[Dialect, Document]:
    text = os.environ.get("TF_CONFIG", "")
    if "tier" in options or (options and not text.strip()):
        return DIALECTS["cloudml"], Document("flags")
    error_source = Source("tf_config", "TF_CONFIG")
    if not text.strip():
        raise error_source.error(f"no cluster is described: the variable is not set and no description is given; {WAYS}")
    text = check_text(text, error_source)
    if not is_json(text):
        raise error_source.error('the variable does not hold a JSON object; expected {"cluster": {...}, "task": {...}}')
    loaded = load(Document("TF_CONFIG", text), error_source)
    return DIALECTS["tf_config"], dataclasses.replace(loaded, from_environment=True)


def _from_resolver(resolver: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"cluster": resolver.cluster_spec().as_dict()}
    task_type, rpc_layer = getattr(resolver, "task_type", None), getattr(resolver, "rpc_layer", None)
    if task_type:
        config["task"] = {"type": task_type, "index": getattr(resolver, "task_id", None) or 0}
    if rpc_layer:
        config["rpc_layer"] = rpc_layer
    return config


def _from_file(path: "str | bytes") -> tuple[Dialect, Document]:
    name = os.fsdecode(path)
    # A name that is not one (forgotten line breaks in a text, for instance) may be of any length.
    source = Source("file", name if len(name) <= 250 else f"{name[:250]}...")
    try:
        content = read_bytes(name, source)
    except ClusterError as error:
        # The nearest file is named already; a tier is the better guess where there is no such file near.
        tier = close(name.upper().replace("-", "_"), TIERS, 0.6)
        if tier is None or os.sep in name or "did you mean" in str(error) or os.path.lexists(name):
            raise
        raise source.error(f"this is neither a file nor a scale tier; did you mean {tier}?") from None
    return _from_text(decode(content, source), name)


def _from_text(text: str, name: str) -> tuple[Dialect, Document]:
    source = Source("text", name)
    document = Document(name, check_text(text, source))
    if not is_json(document.text):
        dialect = _choose(_words_of_text(document.text), DIALECTS.values(), _BLOCK.search(document.text) is not None)
        if dialect is None:
            raise _unknown(source)
        if not dialect.IS_MAPPING:
            return dialect, document
    return _from_mapping(load(document, source), source)


def _from_mapping(document: Document, source: Source) -> tuple[Dialect, Document]:
    mappings = [dialect for dialect in DIALECTS.values() if dialect.IS_MAPPING]
    dialect = _choose(_words_of_mapping(document.mapping), mappings)
    if dialect is None:
        raise _unknown(source)
    return dialect, document


def _unknown(source: Source) -> ClusterError:
    examples = "; ".join(dialect.EXAMPLE for dialect in DIALECTS.values())
    return source.error(f"this is no cluster description that tfdist knows; it reads {examples}")


_NAME = re.compile(r"(?:^|[{<;,])[ \t]*[\"']?([A-Za-z_][\w-]{0,99})[\"']?[ \t]*(?=[:{<])", re.MULTILINE | re.ASCII)
_BLOCK = re.compile(r"^[ \t]*[A-Za-z_]\w*[ \t]*[{<]", re.MULTILINE | re.ASCII)


def _words_of_text(text: str) -> set[str]:
    """The names that a text gives something to: `name: ...`, `name {...`."""
    return set(_NAME.findall(re.sub(r"#.*", "", text)))


def _words_of_mapping(mapping: Mapping[Any, Any]) -> set[str]:
    """The keys of a mapping and of the mappings in it."""
    inner = [value for value in mapping.values() if isinstance(value, Mapping)]
    return {key for level in (mapping, *inner) for key in level if isinstance(key, str)}


def _choose(words: set[str], dialects: Iterable[Dialect], has_blocks: bool = False) -> Dialect | None:
    """Returns the dialect to which most of the words belong, or None where none belongs to any.

    A word counts two, one that is only nearly right counts one, so that a typo is reported by the reader of the dialect
    that was meant. `cluster` alone may be SINGA or TF_CONFIG: a block (`cluster {`) makes it SINGA, else it is TF_CONFIG.
    """
    best, most = None, 0
    for dialect in dialects:
        # Long files of other kinds hold thousands of words; the first 500 tell.
        unknown = sorted(words - dialect.WORDS)[:500]
        score = 2 * len(words & dialect.WORDS) + sum(close(word, dialect.WORDS) is not None for word in unknown)
        if score > most or (score == most > 0 and not has_blocks):
            best, most = dialect, score
    return best
