"""The languages in which a cluster may be described, and `read`, which takes any of them.

`registry.DIALECTS` is the whole list: a new dialect is one new file and one line there. Which dialect a text is in is decided
by its words alone, never by its file name: see `_choose`. Command lines go by the name of their program, environments by
their variables (`environment.py`).
"""

import dataclasses
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, cast

from tfdist.cluster import Cluster
from tfdist.dialects import cloudml, environment, tf_config
from tfdist.dialects.cloudml_fields import OPTIONS, TIERS
from tfdist.dialects.document import Document, check_text, close, decode, is_json, load, read_bytes, shown
from tfdist.dialects.registry import DIALECTS as DIALECTS
from tfdist.dialects.registry import ReadsText, looks_like, programs, text_dialects
from tfdist.errors import ClusterError, Source, nearest
from tfdist.rank_info import RankInfo

WAYS = (
    "give a file (a SINGA job.conf, a CloudML config.yaml, TF_CONFIG, a host file, ...) or a command line (horovodrun, mpirun, "
    f"torchrun, ...) with --cluster or in {environment.CLUSTER_VARIABLE}, a scale tier with --tier, or start the program "
    "in an environment that describes one (TF_CONFIG, a Slurm step, torchrun, ...)"
)

MAX_WORDS = 10_000
"""Words of a command line that are looked at: the launcher's options, not a shell's list of ten thousand files."""

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
            a command line, `horovodrun -np 4 -H a:2,b:2 python train.py`; nothing of it is executed;
            None: the environment of this process, TF_CONFIG for instance.
        hostfile: path of the hosts of a SINGA cluster, one per line.
        overrides: CloudML options that were given as flags and win over the file (`cloudml_fields.OPTIONS`); None means absent.
            `job_dir` goes with every dialect.

    Raises:
        ClusterError: when the description cannot be used; its text is one line that says where and why.
        TypeError: when `source` is of none of these types.
    """
    described = description(source, hostfile=hostfile, overrides=overrides)
    if isinstance(described, RankInfo):
        finds_out = "tfdist.strategy() finds out when it runs on all of them; to translate it, " if described.store else ""
        raise described.source.error(
            f"this says that there are {described.size} ranks, but not where; {finds_out}name the hosts"
        )
    return described


def description(
    source: object = None,
    *,
    hostfile: "str | os.PathLike[str] | None" = None,
    overrides: Mapping[str, Any] | None = None,
) -> Cluster | RankInfo:
    """Reads a description as `read` does; a RankInfo where it gives ranks, but no addresses."""
    options = {name: value for name, value in (overrides or {}).items() if value is not None}
    for name in options:
        if name not in OPTIONS:
            raise Source("flags", f"--{name}").error(f"there is no such option{nearest(name, OPTIONS)}")
    job_dir = _job_dir(options.pop("job_dir", None))
    hosts = None if hostfile is None else os.fspath(hostfile)
    if source is None and "tier" not in options:
        source = from_environment()
        if source is None and not options and os.environ.get("TF_CONFIG", "").strip() == "{}":
            source = tf_config.from_environ(os.environ)  # It says nothing, and that is one task, where it is asked for.
        if source is None and not options:
            raise Source("environment", "environment").error(
                f"no cluster is described: neither TF_CONFIG nor another launcher's variables are set; {WAYS}"
            )
    described = _described(source, hosts, options)
    if job_dir is None or isinstance(described, RankInfo):
        return described
    return dataclasses.replace(described, job_dir=job_dir)


def from_environment() -> Cluster | RankInfo | None:
    """What `TFDIST_CLUSTER` or the environment of this process describes, or None. Raises ClusterError for a bad one."""
    given = os.environ.get(environment.CLUSTER_VARIABLE, "").strip()
    return description(given) if given else environment.find()


def _described(source: object, hosts: str | None, options: dict[str, Any]) -> Cluster | RankInfo:
    if isinstance(source, Cluster | RankInfo):
        if hosts is not None or options:
            raise _does_not_take(source.source, hosts, options)
        return source
    command = _command(source)
    if command is None:
        dialect, document = _find(source)
        return _parse(dialect, document, hosts, options)
    words, origin = command
    reader = programs()[words[0]]
    if hosts is not None or options:
        raise _does_not_take(Source(reader.NAME, origin.name), hosts, options)
    return reader.parse_command(words, Source(reader.NAME, origin.name))


_PYTHON = re.compile(r"python[0-9.]*", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.ASCII | re.DOTALL)


def _command(source: object) -> tuple[list[str], Source] | None:
    """The words of a command line that a dialect reads, from the name of the program on; None for anything else."""
    if isinstance(source, bytes | bytearray):
        source = decode(bytes(source), Source("text", "<text>"))
    if not isinstance(source, str) or not (known := programs()) or not any(name in source for name in known):
        return None
    origin = Source("command", shown(source, 40)[1:-1])
    try:
        # Lines may be continued as in a shell; of several commands the first is read.
        words = shlex.split(check_text(source, origin).replace("\\\n", " "), comments=True)
        fault = None
    except ValueError as error:  # A quotation that does not end.
        words, fault = source.split(), error
    while words and (words[0] == "$" or _ASSIGNMENT.fullmatch(words[0])):  # As pages print it; variables before it.
        words.pop(0)
    words = words[:MAX_WORDS]
    if words and _PYTHON.fullmatch(os.path.basename(words[0])):
        program = next((n for n, word in enumerate(words) if n and (not word.startswith("-") or words[n - 1] == "-m")), 0)
        words = words[program:]
    if not words or os.path.basename(words[0]) not in known or (len(words) == 1 and os.path.exists(words[0])):
        return None
    if fault is not None:
        raise origin.error(f"this command line cannot be split into words: {str(fault).lower()}")
    return [os.path.basename(words[0]), *words[1:]], origin


def _parse(dialect: ReadsText, document: Document, hosts: str | None, options: dict[str, Any]) -> Cluster | RankInfo:
    takes_hosts, takes_options = dialect.NAME == "singa", dialect.NAME == "cloudml"
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


def _find(source: object) -> tuple[ReadsText, Document]:
    """Returns the dialect of a source, and what to parse."""
    if source is None:
        return text_dialects()["cloudml"], Document("flags")
    if isinstance(source, str):
        tier = cloudml.tier_name(source)
        if tier is not None:
            return text_dialects()["cloudml"], Document(source.strip(), mapping={"scaleTier": tier})
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
        return text_dialects()["tf_config"], Document(name, mapping={"cluster": cast(Any, source).as_dict()})
    if callable(getattr(source, "cluster_spec", None)):
        return text_dialects()["tf_config"], Document(name, mapping=_from_resolver(source))
    raise TypeError(
        f"a cluster description is a path, text, a dict, a ClusterSpec, a ClusterResolver or a Cluster, "
        f"not a {type(source).__name__}"
    )


def _from_resolver(resolver: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"cluster": resolver.cluster_spec().as_dict()}
    task_type, rpc_layer = getattr(resolver, "task_type", None), getattr(resolver, "rpc_layer", None)
    if task_type:
        config["task"] = {"type": task_type, "index": getattr(resolver, "task_id", None) or 0}
    if rpc_layer:
        config["rpc_layer"] = rpc_layer
    return config


def _from_file(path: "str | bytes") -> tuple[ReadsText, Document]:
    name = os.fsdecode(path)
    # A name that is not one (forgotten line breaks in a text, for instance) may be of any length.
    source = Source("file", name if len(name) <= 250 else f"{name[:250]}...")
    try:
        content = read_bytes(name, source)
    except ClusterError as error:
        if re.search(r"\S\s+-", name) and not os.path.lexists(name):
            raise source.error(
                f"this is neither a file nor a command line that tfdist reads; those of {', '.join(programs())} are"
            ) from None
        # The nearest file is named already; a tier is the better guess where there is no such file near.
        tier = close(name.upper().replace("-", "_"), TIERS, 0.6)
        if tier is None or os.sep in name or "did you mean" in str(error) or os.path.lexists(name):
            raise
        raise source.error(f"this is neither a file nor a scale tier; did you mean {tier}?") from None
    return _from_text(decode(content, source), name)


def _from_text(text: str, name: str) -> tuple[ReadsText, Document]:
    source = Source("text", name)
    document = Document(name, check_text(text, source))
    if not is_json(document.text):
        dialects = text_dialects().values()
        claimed = next((dialect for dialect in dialects if looks_like(dialect, document.text)), None)
        dialect = claimed or _choose(_words_of_text(document.text), dialects, _BLOCK.search(document.text) is not None)
        if dialect is None:
            raise _unknown(source)
        if not dialect.IS_MAPPING:
            return dialect, document
    return _from_mapping(load(document, source), source)


def _from_mapping(document: Document, source: Source) -> tuple[ReadsText, Document]:
    mappings = [dialect for dialect in text_dialects().values() if dialect.IS_MAPPING]
    claimed = next((dialect for dialect in mappings if looks_like(dialect, document.mapping)), None)
    dialect = claimed or _choose(_words_of_mapping(document.mapping), mappings)
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


def _choose(words: set[str], dialects: Iterable[ReadsText], has_blocks: bool = False) -> ReadsText | None:
    """Returns the dialect to which most of the words belong, or None where none belongs to any.

    A word counts two, one that is only nearly right counts one, so that a typo is reported by the reader of the dialect
    that was meant. `cluster` alone may be SINGA or TF_CONFIG: a block (`cluster {`) makes it SINGA, else it is TF_CONFIG.
    """
    best: ReadsText | None = None
    most = 0
    for dialect in dialects:
        # Long files of other kinds hold thousands of words; the first 500 tell.
        # A text with blocks is no YAML: there only the words themselves can mean a dialect of mappings.
        unknown = [] if has_blocks and dialect.IS_MAPPING else sorted(words - dialect.WORDS)[:500]
        score = 2 * len(words & dialect.WORDS) + sum(close(word, dialect.WORDS) is not None for word in unknown)
        if score > most or (score == most > 0 and not has_blocks):
            best, most = dialect, score
    return best
