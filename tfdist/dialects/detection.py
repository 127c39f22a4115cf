"""Finds the dialect of a description.

The content decides, never the name of a file:

1. a name that is a complete description (`Presets`), or a Python object that a dialect takes (`TextReader.from_object`),
2. a command line, by the name of its program (`CommandReader.programs`),
3. a text or mapping with the form of a dialect (`TextReader.looks_like`),
4. a text or mapping with the words of a dialect (`TextReader.words`): the dialect to which most of them belong.
"""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.dialects.dialect import TextReader
from tfdist.dialects.parsing.document import Document, check_text, close, decode, is_json, read_bytes, shown
from tfdist.dialects.parsing.load import load
from tfdist.dialects.registry import dialects, programs, text_readers
from tfdist.errors import ClusterError, Source

MAX_WORDS = 10_000
"""Words of a command line that are read: the launcher's options, not a shell's list of ten thousand files."""

MAX_UNKNOWN_WORDS = 500
"""Unknown words of a text that are compared with the words of a dialect. Long files of other kinds have thousands."""

_TEXT_MARKS = ("\n", "{", ": ")
_PYTHON = re.compile(r"python[0-9.]*", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.ASCII | re.DOTALL)
_NAME = re.compile(r"(?:^|[{<;,])[ \t]*[\"']?([A-Za-z_][\w-]{0,99})[\"']?[ \t]*(?=[:{<])", re.MULTILINE | re.ASCII)
_BLOCK = re.compile(r"^[ \t]*[A-Za-z_]\w*[ \t]*[{<]", re.MULTILINE | re.ASCII)


@dataclass(frozen=True)
class Detected:
    """A document, and the dialect that reads it."""

    dialect: str
    reader: TextReader
    document: Document


def detect_command(source: object) -> tuple[list[str], Source] | None:
    """Returns the words of a command line that a dialect reads, from the name of the program on; None for other sources.

    A line may be continued as in a shell. The first of several commands is read.

    Raises:
        ClusterError: for a command line that cannot be split into words.
    """
    if isinstance(source, bytes | bytearray):
        source = decode(bytes(source), Source("text", "<text>"))
    known = programs()
    if not isinstance(source, str) or not any(name in source for name in known):
        return None
    origin = Source("command", shown(source, 40)[1:-1])
    try:
        words = shlex.split(check_text(source, origin).replace("\\\n", " "), comments=True)
        fault = None
    except ValueError as error:  # A quotation that does not end.
        words, fault = source.split(), error
    while words and (words[0] == "$" or _ASSIGNMENT.fullmatch(words[0])):  # A prompt, and variables before the program.
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


def detect(source: object) -> Detected:
    """Returns the document of a path, text, dict or object, and the dialect that reads it.

    Raises:
        ClusterError: for a file that cannot be read, and for a description in no known dialect.
        TypeError: for an object that is no description.
    """
    if isinstance(source, str):
        for name, reader in text_readers().items():
            if reader.presets and (preset := reader.presets.find(source)) is not None:
                return Detected(name, reader, Document(source.strip(), mapping=reader.presets.content(preset)))
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


def _from_file(path: "str | bytes") -> Detected:
    name = os.fsdecode(path)
    # A text without line breaks looks like a path; it may have any length.
    source = Source("file", name if len(name) <= 250 else f"{name[:250]}...")
    try:
        content = read_bytes(name, source)
    except ClusterError as error:
        if re.search(r"\S\s+-", name) and not os.path.lexists(name):
            raise source.error(
                f"this is neither a file nor a command line that tfdist reads; those of {', '.join(programs())} are"
            ) from None
        if os.sep in name or "did you mean" in str(error) or os.path.lexists(name):
            raise  # The error suggests the nearest file, or the path is clearly one.
        for presets in (reader.presets for reader in text_readers().values() if reader.presets):
            if meant := close(name.upper().replace("-", "_"), presets.names, 0.6):
                raise source.error(f"this is neither a file nor a {presets.kind}; did you mean {meant}?") from None
        raise
    return _from_text(decode(content, source), name)


def _from_text(text: str, name: str) -> Detected:
    source = Source("text", name)
    document = Document(name, check_text(text, source))
    if not is_json(document.text):
        readers = text_readers()
        dialect = _claiming(document.text, readers) or _best(
            _words_of_text(document.text), readers, has_blocks=_BLOCK.search(document.text) is not None
        )
        if dialect is None:
            raise _unknown(source)
        if not readers[dialect].is_mapping:
            return Detected(dialect, readers[dialect], document)
    return _from_mapping(load(document, source), source)


def _from_mapping(document: Document, source: Source) -> Detected:
    readers = {name: reader for name, reader in text_readers().items() if reader.is_mapping}
    dialect = _claiming(document.mapping, readers) or _best(_words_of_mapping(document.mapping), readers)
    if dialect is None:
        raise _unknown(source)
    return Detected(dialect, readers[dialect], document)


def _unknown(source: Source) -> ClusterError:
    examples = "; ".join(dialect.example for dialect in dialects().values())
    return source.error(f"this is no cluster description that tfdist knows; it reads {examples}")


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
        is_foreign = has_blocks and reader.is_mapping
        unknown = [] if is_foreign else sorted(words - reader.words)[:MAX_UNKNOWN_WORDS]
        score = 2 * len(words & reader.words) + sum(close(word, reader.words) is not None for word in unknown)
        scores[name] = (score, not is_foreign)
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best][0] else None
