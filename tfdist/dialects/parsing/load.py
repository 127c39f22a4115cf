"""`load`: JSON, YAML and dict literals of Python into plain values, safely.

It refuses nesting and alias bombs, duplicate keys, tags that would build objects, and endless numbers.
"""

import ast
import json
import math
import re
import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

from tfdist.dialects.parsing.document import MAX_TEXT, Document, Path, check_text, is_json, shown
from tfdist.errors import ClusterError, Source


def load(document: Document, source: Source) -> Document:
    """Returns the document with its text loaded into `mapping`.

    A text that starts with `{` is JSON; else a dict literal of Python, as programs print it; else YAML, as gcloud takes it.

    Raises:
        ClusterError: for a text that is neither, and for one that is not a mapping.
    """
    lines: dict[Path, int] = {}
    if is_json(document.text):
        try:
            return Document(document.name, mapping=_load_json(document.text, source))
        except _NotJsonError as error:
            mapping = _load_python(document.text)
            if mapping is None and len(document.text) <= MAX_TEXT:
                try:
                    mapping = _load_yaml(document.text, source, lines)
                except ClusterError:
                    raise error from None  # What starts with a brace was meant as JSON.
            if mapping is None:
                raise
    else:
        mapping = _load_yaml(document.text, source, lines)
    return Document(document.name, mapping=mapping, lines=lines)


def load_variable(environ: Mapping[str, str], source: Source, expected: str) -> Document:
    """Returns the JSON object in the variable that `source` names. Raises ClusterError if it holds another text."""
    text = check_text(environ[source.name], source)
    if not is_json(text):
        raise source.error(f"the variable does not hold a JSON object{expected}")
    return load(Document(source.name, text), source)


class _NotJsonError(ClusterError):
    """A text with the brace of JSON, which may be YAML or a Python dict."""


def _load_python(text: str) -> dict[str, Any] | None:
    """Returns the value of a dict literal of Python, or None. Only literals are read, nothing is computed."""
    if len(text) > MAX_TEXT or re.search(r"[\"']", text) is None:
        return None
    try:
        with warnings.catch_warnings():  # Invalid escapes in the text are no warnings to the user.
            warnings.simplefilter("ignore")
            value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, dict) and all(isinstance(key, str) for key in value) else None


def load_call(text: str) -> dict[str, Any] | None:
    """Returns the arguments of one call in Python, `paddle.init(port=7164)`, all named literals; None for any other text."""
    if len(text) > MAX_TEXT:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (statement,) = ast.parse(text.strip()).body
            call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
            if not isinstance(call, ast.Call) or call.args:
                return None
            found = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg is not None}
            return found if len(found) == len(call.keywords) else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


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
        if text.lstrip().startswith(("{{", "{%")):
            hint = "; a template, {{...}}, has to be filled in first"
        fault = source.error(f"this is not JSON (column {error.colno}): {error.msg}{hint}", line=error.lineno)
        raise _NotJsonError(*fault.args) from None
    except RecursionError:
        raise source.error("the JSON is nested too deeply; a description needs five levels at most") from None
    except ValueError:  # int() refuses thousands of digits.
        raise source.error("there is a number of thousands of digits; no port, index or count is as long") from None
    assert isinstance(value, dict), "is_json() saw a brace"
    return value


_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?", re.ASCII)
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, ".inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
_WORDS |= dict.fromkeys(("yes", "true", "on"), True) | dict.fromkeys(("no", "false", "off"), False)
_DEEPEST = 50
_TOO_DEEP = "the YAML is nested too deeply; a description needs five levels at most"
_TOO_DEEP_FOR_LIBYAML = "exceeded maximum nesting depth"  # For flow collections, since libyaml 0.2.6.


def _load_yaml(text: str, source: Source, lines: dict[Path, int]) -> dict[str, Any]:
    import yaml  # Not needed for TF_CONFIG, which every process reads.

    bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        raise source.error(f"the character {bad[0]!r} is not allowed in YAML", line=line)
    # The library only produces events: it never builds an object, and deep nesting needs no deep stack.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builders: list[_Builder] = []
    try:
        for event in yaml.parse(text, Loader=loader):
            line = event.start_mark.line + 1 if event.start_mark else 1
            if isinstance(event, yaml.DocumentStartEvent):
                builders.append(_Builder(source, line))
            elif builders:
                builders[-1].take(type(event).__name__, event, line)
    except ClusterError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        message = _TOO_DEEP if _TOO_DEEP_FOR_LIBYAML in problem else f"this is not YAML: {problem}"
        if mark and "\t" in "".join(text.splitlines()[mark.line : mark.line + 1]):
            message += "; this line has a tab: YAML indents with spaces"
        raise source.error(message, line=mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        # PyYAML raises some of Python's own errors, for example for escapes beyond Unicode.
        raise source.error(f"this is not YAML: {error}") from None
    value = _only_one(builders, source, lines)
    if not isinstance(value, dict):
        raise source.error(f"the description is {shown(value)}; expected a mapping such as `trainingInput: ...`")
    return value


def _only_one(builders: "list[_Builder]", source: Source, lines: dict[Path, int]) -> Any:
    """Returns the value of the one document that is not empty. Several Kubernetes objects become an equivalent `kind: List`."""
    full = [builder for builder in builders if builder.value is not None]
    if len(full) < 2:
        lines.update(full[0].lines if full else {})
        return full[0].value if full else None
    if not all(isinstance(builder.value, dict) and "kind" in builder.value for builder in full):
        message = "this is not YAML of one description: a second document begins"
        raise source.error(f"{message}; only Kubernetes objects, which have a `kind`, may be several", line=full[1].line)
    for number, builder in enumerate(full):
        lines.update({("items", str(number), *path): line for path, line in builder.lines.items()})
    return {"apiVersion": "v1", "kind": "List", "items": [builder.value for builder in full]}


class _Builder:
    """Builds the plain value of one document from the events of a YAML parser: dict, list, str, int, float, bool and None."""

    def __init__(self, source: Source, line: int) -> None:
        self.source = source
        self.line = line
        self.lines: dict[Path, int] = {}
        self.stack: list[Any] = []
        # The path to the next value. In a mapping, None means that its key is next.
        self.path: list[str | None] = []
        self.value: Any = None

    def take(self, kind: str, event: Any, line: int) -> None:
        if kind == "AliasEvent":
            raise self.source.error(f"the alias *{event.anchor} is not allowed; write the value out", line=line)
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            self.stack.pop()
            self.path.pop()
            self.follow()
        elif kind in ("ScalarEvent", "SequenceStartEvent", "MappingStartEvent"):
            if event.tag not in (None, "tag:yaml.org,2002:str"):
                raise self.source.error(f"the tag {shown(event.tag)} is not allowed; write plain values", line=line)
            if self.stack and isinstance(self.stack[-1], dict) and self.path[-1] is None:
                self.key(kind, event, line)
            elif kind == "ScalarEvent":
                self.put(_scalar(event.value) if event.implicit[0] else event.value)
                self.follow()
            else:
                self.open({} if kind == "MappingStartEvent" else [], line)

    def key(self, kind: str, event: Any, line: int) -> None:
        if kind != "ScalarEvent":
            hint = "; a template, {{...}}, has to be filled in first" if kind == "MappingStartEvent" else ""
            raise self.source.error(f"a key of a mapping is a list or a mapping; expected a name{hint}", line=line)
        self.path[-1] = event.value
        here = tuple(map(str, self.path))
        if event.value in self.stack[-1]:
            message = f"{shown(event.value)} is given twice, first in line {self.lines[here]}; keep one of them"
            raise self.source.error(message, line=line)
        self.lines[here] = line

    def put(self, value: Any) -> None:
        if not self.stack:
            self.value = value
        elif isinstance(self.stack[-1], dict):
            self.stack[-1][self.path[-1]] = value
        else:
            self.stack[-1].append(value)

    def open(self, value: Any, line: int) -> None:
        if len(self.stack) >= _DEEPEST:
            raise self.source.error(_TOO_DEEP, line=line)
        self.put(value)
        self.stack.append(value)
        self.path.append(None if isinstance(value, dict) else "0")

    def follow(self) -> None:
        """Advances to the next key or element."""
        if self.stack:
            self.path[-1] = None if isinstance(self.stack[-1], dict) else str(len(self.stack[-1]))


def _scalar(text: str) -> Any:
    # YAML 1.1 reads 1:30 as 90 and 010 as 8. In a cluster description these are texts.
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _WORDS.get(text.lower(), text)
