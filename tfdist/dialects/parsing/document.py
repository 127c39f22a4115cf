"""`Document`: a description before its dialect reads it; and how files become text and values become messages.

Nothing here knows a dialect. Functions raise `ClusterError` and nothing else, for any input.
"""

import functools
import os
import select
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from tfdist.errors import ClusterError, Source

MAX_JSON = 16 << 20
"""Largest JSON text in bytes. TF_CONFIG of the largest cluster (`MAX_TASKS` addresses) is smaller."""

MAX_TEXT = 1 << 20
"""Largest YAML or text proto in bytes. People write these by hand."""

PIPE_SECONDS = 60.0
"""How long a pipe in place of a file may be silent."""

MAX_TASKS = 100_000
"""Most tasks, slots or executors that a description may ask for. Without it a mistyped count would fill the memory."""

MAX_GPUS_PER_TASK = 1024
"""Most GPUs of one task. More is a mistyped number."""

Path = tuple[str, ...]


@dataclass(frozen=True)
class Document:
    """A description before its dialect reads it.

    Attributes:
        name: its place, for messages: a file name, `TF_CONFIG`, `<text>`.
        text: its text; empty if it came as a mapping.
        mapping: its content, if it came as a mapping or was loaded from JSON or YAML.
        lines: line numbers of mapping entries by path, if they are known.
        from_environment: whether it is the TF_CONFIG of this process, which has a meaning even if it is empty.
        hostfile: path of the host file that accompanies it; only for dialects that take one.
        overrides: options that win over it, by name; only those that its dialect takes.
    """

    name: str
    text: str = ""
    mapping: Mapping[Any, Any] = field(default_factory=dict)
    lines: Mapping[Path, int] = field(default_factory=dict)
    from_environment: bool = False
    hostfile: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


def shown(value: object, limit: int = 60) -> str:
    """Returns `repr(value)`, shortened for a message; never raises."""
    if isinstance(value, Mapping):
        return f"a mapping of {len(value)} entries"
    if isinstance(value, list | tuple) and len(value) > 4:
        return f"a list of {len(value)} entries"
    try:
        text = repr(value[: limit + 1] if isinstance(value, str | bytes) else value)
    except Exception:  # repr() of a caller's object may raise, and so does that of an int with thousands of digits.
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= limit + 2 else f"{text[:limit]}..."


def close(name: str, known: Iterable[str], cutoff: float = 0.8) -> str | None:
    """Returns the known name that `name` probably misspells, or None. A known name is close to itself."""
    return _close(name[:100], frozenset(known), cutoff)


@functools.lru_cache(maxsize=1024)
def _close(name: str, known: frozenset[str], cutoff: float) -> str | None:
    # Sorted, so every process chooses the same one of two equally close names.
    matches = [name] if name in known else get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def decode(content: bytes, source: Source) -> str:
    """Returns the text of a file. Raises ClusterError if it is not text in UTF-8."""
    if len(content) > MAX_JSON:
        raise source.error(f"the description is larger than {MAX_JSON >> 20} MiB; no cluster description is")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise source.error(
            f"byte {error.start} is not UTF-8; save the description as text in UTF-8 (is this the right file?)", line=line
        ) from None


def read_text(path: "str | os.PathLike[str]", source: Source) -> str:
    """Returns the text of a file. Raises ClusterError as `read_bytes` and `decode` do."""
    return decode(read_bytes(path, source), source)


def check_text(text: str, source: Source) -> str:
    """Returns `text` without a byte order mark. Raises ClusterError if it is binary, empty or too large."""
    text = text.removeprefix("\ufeff")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise source.error("there is a NUL character; a description is text (is this the right file?)", line=line)
    if all(line.lstrip()[:1] in ("", "#") for line in text.splitlines()):
        raise source.error("the description is empty; it has to name at least one task")
    limit = MAX_JSON if is_json(text) else MAX_TEXT
    if len(text) > limit:
        raise source.error(f"the description is larger than {limit >> 20} MiB; no cluster description of this kind is")
    return text


def is_json(text: str) -> bool:
    """Returns whether the text is a JSON object: it starts with `{`, unlike a text proto and a usual YAML mapping."""
    return text.lstrip()[:1] == "{"


def read_bytes(path: "str | os.PathLike[str]", source: Source) -> bytes:
    """Returns the content of a file, at most one byte more than `MAX_JSON`. Raises ClusterError if it cannot be read."""
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):
            return _read_pipe(path, source)
        with open(path, "rb") as file:
            return file.read(MAX_JSON + 1)
    except ClusterError:  # It is a ValueError.
        raise
    except FileNotFoundError:
        if os.path.islink(path):
            raise source.error(f"this is a link to {shown(os.readlink(path))}, which does not exist") from None
        raise source.error(f"there is no such file{_nearest_file(os.fspath(path))}") from None
    except OSError as error:
        raise source.error(f"the file cannot be read: {error.strerror or error}") from None
    except ValueError:  # A NUL character, or one that the file system cannot encode.
        raise source.error("this cannot be the name of a file") from None


def _read_pipe(path: "str | os.PathLike[str]", source: Source) -> bytes:
    """Returns what comes through a pipe, such as `<(command)` of a shell. Nobody may write into one that is named."""
    content = bytearray()
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while len(content) <= MAX_JSON:
            if not poll.poll(PIPE_SECONDS * 1000):
                raise source.error(f"nothing has come through this pipe for {PIPE_SECONDS:g} s; write into it, or give a file")
            data = os.read(descriptor, 1 << 16)
            if not data:
                break
            content += data
    finally:
        os.close(descriptor)
    return bytes(content)


def _nearest_file(path: str) -> str:
    folder, name = os.path.split(path)
    try:
        match = close(name, os.listdir(folder or "."), 0.75)
    except OSError:
        return f"; the folder {folder} does not exist either" if folder else ""
    return f"; did you mean {os.path.join(folder, match)}?" if match else ""
