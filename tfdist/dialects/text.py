"""Text into plain values, safely: what JSON, YAML and untrusted files need before a dialect looks at them.

Nothing here knows a dialect. Every function raises `ClusterError` and nothing else, whatever bytes it is given: nesting and
alias bombs, duplicate keys, tags that would build objects, numbers without end.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NoReturn

from tfdist.errors import ClusterError, Source

MAX_JSON = 16 << 20
"""Largest JSON text in bytes: TF_CONFIG of the largest cluster (`MAX_TASKS` addresses) fits with room to spare."""

MAX_TEXT = 1 << 20
"""Largest YAML or text proto in bytes; people write these by hand."""

MAX_TASKS = 100_000
"""Most tasks, slots or executors that a description may ask for, so that a mistyped count cannot eat the memory."""

Path = tuple[str, ...]


@dataclass(frozen=True)
class Document:
    """A description before its dialect reads it.

    Attributes:
        name: where it was found, for messages: a file name, `TF_CONFIG`, `<text>`.
        text: its text; empty where it came as a mapping.
        mapping: its content where it came as a mapping, or was loaded from JSON or YAML.
        lines: line numbers of mapping entries by path, as far as they are known.
        from_environment: whether it is the TF_CONFIG of this process, which may be empty and yet mean something.
    """

    name: str
    text: str = ""
    mapping: Mapping[Any, Any] = field(default_factory=dict)
    lines: Mapping[Path, int] = field(default_factory=dict)
    from_environment: bool = False


def shown(value: object, limit: int = 60) -> str:
    """Returns `repr(value)`, shortened for a message; never raises."""
    if isinstance(value, Mapping):
        return f"a mapping of {len(value)} entries"
    if isinstance(value, list | tuple) and len(value) > 4:
        return f"a list of {len(value)} entries"
    try:
        text = repr(value[: limit + 1] if isinstance(value, str | bytes) else value)
    except Exception:  # A caller's own object, or an int too long for str(): the message must still be made.
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= limit + 2 else f"{text[:limit]}..."


def close(name: str, known: Iterable[str], cutoff: float = 0.8) -> str | None:
    """Returns the known name that `name` is probably a misspelling of, or None. A known name is close to itself."""
    matches = get_close_matches(name[:100], list(known), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def decode(content: bytes, source: Source) -> str:
    """Returns the text of a file. Raises ClusterError where it is not text in UTF-8."""
    if len(content) > MAX_JSON:
        raise source.error(f"the description is larger than {MAX_JSON >> 20} MiB; no cluster description is")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise source.error(
            f"byte {error.start} is not UTF-8; save the description as text in UTF-8 (is this the right file?)", line=line
        ) from None


def check_text(text: str, source: Source) -> str:
    """Returns `text` without a byte order mark. Raises ClusterError where it is binary, empty or too large."""
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
    """Whether the text has to be a JSON object: it starts with `{`, as no text proto and no usual YAML mapping does."""
    return text.lstrip()[:1] == "{"


def read_bytes(path: "str | os.PathLike[str]", source: Source) -> bytes:
    """Returns the content of a file, at most one byte more than is allowed. Raises ClusterError where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_JSON + 1)
    except FileNotFoundError:
        raise source.error(f"there is no such file{_nearest_file(os.fspath(path))}") from None
    except OSError as error:
        raise source.error(f"the file cannot be read: {error.strerror or error}") from None
    except ValueError:  # A NUL character, or one that the file system cannot encode.
        raise source.error("this cannot be the name of a file") from None


def _nearest_file(path: str) -> str:
    folder, name = os.path.split(path)
    try:
        match = close(name, os.listdir(folder or "."), 0.6)
    except OSError:
        return f"; the folder {folder} does not exist either" if folder else ""
    return f"; did you mean {os.path.join(folder, match)}?" if match else ""


def load(document: Document, source: Source) -> Document:
    """Returns the document with its text loaded into `mapping`, as JSON where it starts with `{`, else as YAML."""
    if is_json(document.text):
        return Document(document.name, mapping=_load_json(document.text, source))
    lines: dict[Path, int] = {}
    mapping = _load_yaml(document.text, source, lines)
    return Document(document.name, mapping=mapping, lines=lines)


def _load_json(text: str, source: Source) -> dict[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) < len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise source.error(f"the key {shown(twice)} is given twice in one object; keep one of them")
        return result

    def constant(name: str) -> NoReturn:
        raise source.error(f"{name} is not JSON; write a number")

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except ClusterError:
        raise
    except json.JSONDecodeError as error:
        hint = "; is a comma or a quote missing here?" if "delimiter" in error.msg or "property name" in error.msg else ""
        raise source.error(f"this is not JSON (column {error.colno}): {error.msg}{hint}", line=error.lineno) from None
    except RecursionError:
        raise source.error("the JSON is nested too deeply; a description needs five levels at most") from None
    except ValueError:  # int() refuses thousands of digits.
        raise source.error("there is a number of thousands of digits; no port, index or count is as long") from None
    assert isinstance(value, dict), "is_json() saw a brace"
    return value


_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "value")}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})", re.ASCII)
_TRUE = ("yes", "true", "on")


def _load_yaml(text: str, source: Source, lines: dict[Path, int]) -> dict[str, Any]:
    import yaml  # Here, because TF_CONFIG needs none of it and every process reads TF_CONFIG.

    class Loader(yaml.SafeLoader):
        """Composes nodes, so that lines are known and no object is ever built; refuses aliases, which can multiply."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()  # type: ignore[no-untyped-call]
                line = event.start_mark.line + 1
                raise source.error(f"the alias *{event.anchor} is not allowed; write the value out", line=line)
            return super().compose_node(parent, index)

    try:
        loader = Loader(text)
        node = loader.get_single_node()
        value = _plain(node, source, (), lines)
    except ClusterError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise source.error(f"this is not YAML: {problem}", line=mark.line + 1 if mark else None) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise source.error(f"the character {error.character!r} is not allowed in YAML", line=line) from None
    except RecursionError:
        raise source.error("the YAML is nested too deeply; a description needs five levels at most") from None
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        # PyYAML lets some of Python's own errors through, for instance for escapes beyond Unicode.
        raise source.error(f"this is not YAML: {error}") from None
    if not isinstance(value, dict):
        raise source.error(f"the description is {shown(value)}; expected a mapping such as `trainingInput: ...`")
    return value


def _plain(node: Any, source: Source, path: Path, lines: dict[Path, int]) -> Any:
    """Returns the node's value: dict, list, str, int, float, bool or None. Scalars of any other kind stay text."""
    if node is None:
        return None
    line = node.start_mark.line + 1
    if node.tag not in _TAGS:
        raise source.error(f"the tag {shown(node.tag)} is not allowed; write plain values", line=line)
    if node.id == "sequence":
        return [_plain(item, source, (*path, str(position)), lines) for position, item in enumerate(node.value)]
    if node.id == "mapping":
        result: dict[str, Any] = {}
        for key, item in node.value:
            line = key.start_mark.line + 1
            if key.id != "scalar":
                raise source.error("a key of a mapping is a list or a mapping; expected a name", line=line)
            if key.value in result:
                raise source.error(
                    f"{shown(key.value)} is given twice, first in line {lines[*path, key.value]}; keep one of them", line=line
                )
            lines[*path, key.value] = line
            result[key.value] = _plain(item, source, (*path, key.value), lines)
        return result
    return _scalar(node.tag.rpartition(":")[2], node.value)


def _scalar(kind: str, text: str) -> Any:
    # YAML 1.1 reads 1:30 as 90 and 010 as 8; nobody who writes a cluster means that, so such scalars stay text.
    if kind == "int" and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "float":
        try:
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            return text
    if kind == "bool":
        return text.lower() in _TRUE
    return None if kind == "null" else text
