"""Finds the dialect of a description.

The content decides, never the name of a file:

1. a name that is a complete description (`Presets`), or a Python object that a dialect takes (`TextReader.from_object`),
2. a text or mapping with the form of a dialect (`TextReader.looks_like`),
3. a command line or a script, by its launcher (`commands`),
4. a text or mapping with the words of a dialect (`TextReader.words`), at least one of them a word that no other language has
   (`TextReader.marks`): the dialect to which most of the words belong.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tfdist.cluster import valid_host
from tfdist.dialects.commands import Launch, check_prefix, is_script, launches, may_launch, names_shell
from tfdist.dialects.dialect import TextReader
from tfdist.dialects.other_tools import reason_against
from tfdist.dialects.parsing.document import Document, check_text, close, decode, is_json, read_bytes, shown
from tfdist.dialects.parsing.load import load, load_call
from tfdist.dialects.registry import command_readers, dialects, programs, text_readers
from tfdist.errors import ClusterError, Source

MAX_UNKNOWN_WORDS = 500
"""Unknown words of a text that are compared with the words of a dialect. Long files of other kinds have thousands."""

_TEXT_MARKS = ("\n", "{", ": ")
_ASSIGNED = re.compile(
    r"\s*(?:(?:export\s+|ENV\s+)?[A-Za-z_][\w.]*(?:\[[\"']\w+[\"']\])?\s*=\s*(?:[A-Za-z_][\w.]*\(\s*)?|[A-Za-z_][\w.]*\(\s*)"
    r"(\{.*\}|\[.*\])\s*,?\s*\)?\s*;?\s*",
    re.ASCII | re.DOTALL,
)
_AROUND = re.compile(
    r"^(?:import[ \t][\w., ]+|from[ \t][\w.]+[ \t]import[ \t][\w., ]+"
    r"|os\.environ\[[\"']TF_CONFIG[\"']\][ \t]*=[ \t]*json\.dumps\(\w+\)[ \t]*)(?:#.*)?$",
    re.ASCII | re.MULTILINE,
)
"""Lines around `tf_config = {...}` in tutorials: imports, and `os.environ["TF_CONFIG"] = json.dumps(tf_config)`."""
_CALL = re.compile(r"\s*(?:[A-Za-z_]\w*\s*=\s*)?[A-Za-z_][\w.]*\(\s*[A-Za-z_]\w*\s*=[^=]", re.ASCII)
"""The beginning of `paddle.init(port=7164)` or `rendezvous = dict(num_shards=2, ...)`."""
_NAME = re.compile(r"(?:^|[{<;,])[ \t]*[\"']?([A-Za-z_][\w-]{0,99})[\"']?[ \t]*(?=[:{<])", re.MULTILINE | re.ASCII)
_COMMAND = re.compile(r"[ \t]*[\w./-]+[ \t]+[\w./-]", re.ASCII)
"""A program and its first argument."""
_HOSTS = re.compile(r"[\w.-]+(?::\d+)?(?:,[\w.-]+(?::\d+)?)+", re.ASCII)
_IMPORT = re.compile(r"^(?:import|from)[ \t]+[\w.]+", re.MULTILINE | re.ASCII)
_BLOCK = re.compile(r"^[ \t]*[A-Za-z_]\w*[ \t]*[{<]", re.MULTILINE | re.ASCII)


@dataclass(frozen=True)
class Detected:
    """A document, and the dialect that reads it."""

    dialect: str
    reader: TextReader
    document: Document


@dataclass(frozen=True)
class Launched:
    """The commands of a script or command line that describe a cluster.

    Attributes:
        launches: the commands.
        source: where they were given.
        has_lines: whether the text has several lines, so that messages name them.
    """

    launches: list[Launch]
    source: Source
    has_lines: bool


def detect(source: object) -> "Detected | Launched":
    """Returns the document of a path, text, dict or object and the dialect that reads it, or the commands that describe a
    cluster.

    Raises:
        ClusterError: for a file that cannot be read, and for a description in no known dialect.
        TypeError: for an object that is no description.
    """
    if isinstance(source, str):
        for name, reader in text_readers().items():
            if reader.presets and (preset := reader.presets.find(source)) is not None:
                return Detected(name, reader, Document(source.strip(), mapping=reader.presets.content(preset)))
        if (assigned := _assigned(source, "<text>")) is not None:
            return assigned
        launched = None if os.path.lexists(source[:4096].strip()) else detect_launches(source, "<text>")
        if launched is not None and not _claiming(source, _of_text(source)):
            return _submitted(launched) or launched
        if any(mark in source for mark in _TEXT_MARKS) or not source.strip():
            return _from_text(source, "<text>")
        return _from_file(source)
    if isinstance(source, bytes | bytearray):
        return _from_text(decode(bytes(source), Source("text", "<text>")), "<text>")
    if isinstance(source, os.PathLike):
        return _from_file(os.fspath(source))
    if isinstance(source, Mapping):
        return _from_mapping(Document("<dict>", mapping=source), Source("dict", "<dict>"))
    for name, reader in text_readers().items():
        if (mapping := reader.from_object(source)) is not None:
            return Detected(name, reader, Document(f"<{type(source).__name__}>", mapping=mapping))
    raise TypeError(
        f"a cluster description is a path, text, a dict, a ClusterSpec, a ClusterResolver or a Cluster, "
        f"not a {type(source).__name__}"
    )


def _from_file(path: "str | bytes") -> "Detected | Launched":
    name = os.fsdecode(path)
    # A text without line breaks looks like a path; it may have any length.
    source = Source("file", name if len(name) <= 250 else f"{name[:250]}...")
    try:
        content = read_bytes(name, source)
    except ClusterError as error:
        if re.search(r"\S\s+-", name) and not os.path.lexists(name):
            check_prefix(name, source)
            raise source.error(
                f"this is neither a file nor a command line that tfdist reads; those of {', '.join(programs())} are"
            ) from None
        if _HOSTS.fullmatch(name) and not os.path.lexists(name):
            raise source.error(
                "this is neither a file nor a description; for hosts write 'horovodrun -np 4 -H a:2,b:2'"
            ) from None
        if os.sep in name or "did you mean" in str(error) or os.path.lexists(name):
            raise  # The error suggests the nearest file, or the path is clearly one.
        for presets in (reader.presets for reader in text_readers().values() if reader.presets):
            if meant := close(name.upper().replace("-", "_"), presets.names, 0.6):
                raise source.error(f"this is neither a file nor a {presets.kind}; did you mean {meant}?") from None
        raise
    text = decode(content, source)
    try:
        return _from_text(text, name)
    except ClusterError:
        if name.endswith(".py") and _IMPORT.search(text):
            raise source.error(
                "this is a Python program, not the description of a cluster; the program follows the flags"
            ) from None
        raise


def detect_launches(text: str, name: str, known: Mapping[str, str] = MappingProxyType({})) -> Launched | None:
    """Returns the commands of a text that describe a cluster; None if it has none. `known` variables are set where it runs.

    Raises:
        ClusterError: for a command line that cannot be split into words.
    """
    if not may_launch(text) or not is_script(text):
        return None
    has_lines = name != "<text>" or "\n" in text.replace("\\\n", "").strip()
    source = Source("command", name if has_lines else shown(text.strip(), 40)[1:-1])
    found = launches(text, source, has_lines, known, os.environ)
    return Launched(found, source, has_lines) if found else None


def _submitted(launched: Launched) -> Detected | None:
    """Returns the script that the one command submits; None for others."""
    dialect, words = launched.launches[0].dialect, launched.launches[0].words
    if len(launched.launches) > 1 or not words:
        return None
    document = command_readers()[dialect].submits(words, Source(dialect, launched.source.name))
    return None if document is None else Detected(dialect, text_readers()[dialect], document)


def _from_text(text: str, name: str) -> "Detected | Launched":
    source = Source("text", name)
    document = Document(name, check_text(text, source))
    if is_json(document.text):
        return _from_mapping(load(document, source), source)
    if (assigned := _assigned(document.text, name) or _listed(document.text, name)) is not None:
        return assigned
    readers = _of_text(document.text)
    dialect = _claiming(document.text, readers)
    if dialect is None and (launched := detect_launches(document.text, name)) is not None:
        return _submitted(launched) or launched
    if dialect is None:
        has_blocks = _BLOCK.search(document.text) is not None
        dialect = _best(_words_of_text(document.text), readers, has_blocks)
    if dialect is None:
        raise _unreadable(document.text, source)
    if not readers[dialect].is_mapping:
        return Detected(dialect, readers[dialect], document)
    try:
        loaded = load(document, source)
    except ClusterError:
        if not (is_script(document.text) and _COMMAND.match(document.text)):
            raise
        known = ", ".join(programs())
        raise source.error(
            f"this is neither a description nor a command line that tfdist reads; those of {known} are"
        ) from None
    return _from_mapping(loaded, source)


def _unreadable(text: str, source: Source) -> ClusterError:
    """Returns, or raises, the error for a text that no dialect reads."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) > 1 and all(valid_host(line) and not line.isdecimal() for line in lines):
        return source.error(
            f"these are names of hosts without a number of processes; write it behind each, `{lines[0]} slots=1` (a "
            "host file of SINGA goes with its job.conf, --hostfile)"
        )
    if is_script(text):
        check_prefix(text, source)
    return _unknown(source, _words_of_text(text))


def _assigned(text: str, name: str) -> Detected | None:
    """Returns the description in a text that is one assignment or argument of an object, `TF_CONFIG = {...}`; None for other
    texts.

    It is written so in Python (`tf.train.ClusterSpec({...})`, `paddle.init(port=7164)`), in environment files and in
    Dockerfiles, and by people who forget that a shell needs quotes.
    """
    if _CALL.match(text) is not None and (arguments := load_call(text)) is not None:
        return _from_mapping(Document(name, mapping=arguments), Source("text", name))
    text = _AROUND.sub("", text) if "TF_CONFIG" in text else text
    match = _ASSIGNED.fullmatch(text) if "=" in text[:200] or "(" in text[:200] else None
    if match is None:
        return None
    if match[1].startswith("["):
        return _listed(match[1], name)
    source = Source("text", name)
    try:
        document = load(Document(name, match[1]), source)
    except ClusterError:
        return None
    return _from_mapping(document, source)


def _listed(text: str, name: str) -> Detected | None:
    """Returns the description in a text that is a list, in JSON or Python, which some dialect takes; None for other texts."""
    if text.lstrip()[:1] != "[":
        return None
    try:
        values = load(Document(name, f'{{"": {text}}}'), Source("text", name)).mapping[""]
    except ClusterError:
        return None
    for dialect, reader in text_readers().items():
        if (mapping := reader.from_object(values)) is not None:
            return Detected(dialect, reader, Document(name, mapping=mapping))
    return None


def _from_mapping(document: Document, source: Source) -> Detected:
    readers = {name: reader for name, reader in text_readers().items() if reader.is_mapping}
    dialect = _claiming(document.mapping, readers)
    words = _words_of_mapping(document.mapping)
    given = words if len(document.mapping) == 1 else {key for key in document.mapping if isinstance(key, str)}
    if dialect is None and reason_against(given) is None:
        dialect = _best(words, readers)
    if dialect is None:
        raise _unknown(source, given)
    return Detected(dialect, readers[dialect], document)


def _unknown(source: Source, names: Iterable[str]) -> ClusterError:
    known = sorted({mark for reader in text_readers().values() for mark in reader.marks})
    titles = ", ".join(dialect.title for dialect in dialects().values() if dialect.text or dialect.command)
    given = sorted(names)
    if reason := reason_against(given):
        return source.error(f"this is no cluster description: {reason}")
    found = (
        f"it has {', '.join(shown(name, 30)[1:-1] for name in given[:6])}{', ...' if len(given) > 6 else ''}" if given else ""
    )
    meant = next((meant for meant in (close(name, known) for name in given[:50]) if meant), None)
    hint = f"; did you mean {meant}?" if meant else ""
    return source.error(
        f"this is no cluster description that tfdist knows: {found or 'it names no jobs, hosts or numbers of processes'}, and "
        f"nothing of {titles}; docs/dialects/README.md shows what each looks like{hint}"
    )


def _of_text(text: str) -> Mapping[str, TextReader]:
    """Returns the dialects in which a text may be: a shell script is no mapping, although it may write one to a file."""
    return {name: reader for name, reader in text_readers().items() if not (reader.is_mapping and names_shell(text))}


def _claiming(content: "str | Mapping[Any, Any]", readers: Mapping[str, TextReader]) -> str | None:
    return next((name for name, reader in readers.items() if reader.looks_like(content)), None)


def _words_of_text(text: str) -> set[str]:
    """Returns the names to which a text gives something: `name: ...`, `name {...`."""
    return set(_NAME.findall(re.sub(r"#.*", "", text)))


def _words_of_mapping(mapping: Mapping[Any, Any]) -> set[str]:
    """Returns the keys of a mapping and of the mappings in it."""
    inner = [value for value in mapping.values() if isinstance(value, Mapping)]
    return {key for level in (mapping, *inner) for key in level if isinstance(key, str)}


def _best(words: set[str], readers: Mapping[str, TextReader], has_blocks: bool = False) -> str | None:
    """Returns the dialect to which most of the words belong, or None if none belongs to any.

    A word counts two; a word that resembles one of the dialect counts one, so that the reader of that dialect reports the typo.
    A text with blocks (`cluster {`) is no YAML: there only exact words count for a dialect of mappings, and the other
    dialects win ties. Otherwise the earlier dialect wins.
    """
    scores: dict[str, tuple[int, bool]] = {}
    for name, reader in readers.items():
        if reader.marks and not any(close(word, reader.marks, 0.85) for word in sorted(words)[:MAX_UNKNOWN_WORDS]):
            continue
        is_foreign = has_blocks and reader.is_mapping
        unknown = [] if is_foreign else sorted(words - reader.words)[:MAX_UNKNOWN_WORDS]
        score = 2 * len(words & reader.words) + sum(close(word, reader.words) is not None for word in unknown)
        scores[name] = (score, not is_foreign)
    best = max(scores, key=lambda name: scores[name], default=None)
    return best if best is not None and scores[best][0] else None
