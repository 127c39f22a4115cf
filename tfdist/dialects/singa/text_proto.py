"""The text proto of SINGA: finds the entries of a file, and parses messages with protobuf.

job.conf also describes a neural network, with dozens of messages that do not matter here. So brackets locate the entries of the
file, and protobuf parses only `cluster`, `name` and `gpu`, at their own lines and columns.
"""

import functools
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tfdist.dialects.parsing.document import shown
from tfdist.errors import ClusterError, Source

CLUSTER_FIELDS: dict[str, tuple[int, str, str]] = {
    "nworker_groups": (1, "int32", "1"),
    "nserver_groups": (2, "int32", "1"),
    "nworkers_per_group": (3, "int32", "1"),
    "nservers_per_group": (4, "int32", "1"),
    "nworkers_per_procs": (5, "int32", "1"),
    "nservers_per_procs": (6, "int32", "1"),
    "workspace": (10, "string", ""),
    "server_worker_separate": (20, "bool", "false"),
    "sync_freq": (21, "int32", "1"),
    "start_port": (60, "int32", "6723"),
    "share_memory": (62, "bool", "true"),
    "poll_time": (81, "int32", "100"),
}
"""ClusterProto: field -> number, type and default (apache/singa src/proto/job.proto, v0.1.0 to v0.3.0-rc3).

SINGA's documentation prints the first two without a default; job.proto has 1.
"""

JOB_FIELDS = frozenset(
    {"name", "neuralnet", "train_one_batch", "updater", "cluster", "train_steps", "gpu", "disp_freq", "test_freq", "test_steps"}
    | {"validate_freq", "validate_steps", "checkpoint_freq", "checkpoint_path", "warmup_steps", "debug", "reset_param_version"}
    | {"num_openblas_threads", "checkpoint_after", "disp_after", "test_after", "validate_after", "resume", "step", "id"}
)
"""The fields of JobProto."""

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)
      | (?P<word>[A-Za-z0-9_.+-]+)
      | (?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*')
      | (?P<mark>[{}<>\[\]:;,/])
    """,
    re.VERBOSE | re.ASCII,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CLOSING = {"{": "}", "<": ">", "[": "]"}


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a text proto: its kind (`word`, `string`, `mark`, or `end`), its text, offset and line."""

    kind: str
    text: str
    start: int
    line: int

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a message, `name: value` or `name { ... }`.

    Attributes:
        name: name of the field.
        start: its first offset.
        end: the offset after it.
        line: its line, from 1.
        is_block: whether it is `name { ... }`.
        inside: offsets of the content of a block.
    """

    name: str
    start: int
    end: int
    line: int
    is_block: bool
    inside: tuple[int, int] = (0, 0)


def tokens(text: str, source: Source, first: int = 0, last: int | None = None) -> Iterator[Token]:
    """Yields the tokens of `text[first:last]`, then one of kind `end`. Raises ClusterError for other characters."""
    position, stop = first, len(text) if last is None else last
    line = text.count("\n", 0, first) + 1
    while position < stop:
        match = _TOKEN.match(text, position, stop)
        if match is None:
            found = text[position]
            what = "a string that does not end in its line" if found in "\"'" else f"the character {found!r}"
            raise source.error(f"there is {what}, which is not text proto", line=line)
        if match.lastgroup != "space":
            yield Token(str(match.lastgroup), match[0], position, line)
        line += match[0].count("\n")
        position = match.end()
    yield Token("end", "the end of the text", stop, line)


class _Walker:
    """Walks through the entries of one message without knowledge of its fields."""

    def __init__(self, text: str, source: Source, first: int, last: int | None) -> None:
        self.source = source
        self.tokens = tokens(text, source, first, last)
        self.token = next(self.tokens)
        self.last = self.token

    def take(self) -> Token:
        """Returns the current token and advances."""
        self.last = self.token
        if self.token.kind != "end":
            self.token = next(self.tokens)
        return self.last

    def error(self, expected: str) -> ClusterError:
        found = self.token.text if self.token.kind == "end" else shown(self.token.text)
        return self.source.error(f"expected {expected}, found {found}", line=self.token.line)

    def entries(self) -> Iterator[Entry]:
        while self.token.kind != "end":
            yield self.entry()
            if self.token.text in (",", ";") and self.token.kind == "mark":
                self.take()

    def entry(self) -> Entry:
        name = self.take()
        if name.text == "[":  # An extension: [package.name]
            self.skip(name)
        elif name.kind != "word" or not _NAME.fullmatch(name.text):
            self.token = name
            raise self.error("the name of a field")
        colon = self.token.text == ":"
        if colon:
            self.take()
        opening = self.token
        if opening.kind == "mark" and opening.text in _CLOSING:
            self.take()
            self.skip(opening)
            is_block = opening.text != "["
            if not colon and not is_block:
                raise self.source.error(f"there is no `:` between {name.text} and its value", line=name.line)
            return Entry(name.text, name.start, self.last.end, name.line, is_block, (opening.end, self.last.start))
        if not colon:
            raise self.source.error(f"there is no `:` or block after {shown(name.text)}", line=name.line)
        if self.token.kind not in ("word", "string"):
            raise self.error(f"a value for {name.text}")
        # Adjacent strings are one string.
        while self.take().kind == "string" and self.token.kind == "string":
            pass
        return Entry(name.text, name.start, self.last.end, name.line, False)

    def skip(self, opening: Token) -> None:
        """Advances past the bracket that closes `opening`. A loop: blocks may be nested too deeply for a recursion."""
        stack = [opening]
        while stack:
            token = self.take()
            if token.kind == "end":
                raise self.source.error(
                    f"the {stack[-1].text} here is never closed; a {_CLOSING[stack[-1].text]} is missing", line=stack[-1].line
                )
            if token.kind != "mark":
                continue
            if token.text in _CLOSING:
                stack.append(token)
            elif token.text in _CLOSING.values() and token.text != _CLOSING[stack.pop().text]:
                raise self.source.error(f"{token.text} closes a bracket of another kind", line=token.line)


def entries(text: str, source: Source, first: int = 0, last: int | None = None) -> list[Entry]:
    """Returns the entries of the message in `text[first:last]`, in order. Raises ClusterError if it is not text proto."""
    return list(_Walker(text, source, first, last).entries())


@functools.cache
def messages() -> tuple[type[Any], type[Any]]:
    """Returns the message classes ClusterProto and JobProto (with only name, cluster and gpu)."""
    # Imported here because most descriptions are not SINGA's. The pool is private, so a program may load SINGA's own classes.
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field_type = descriptor_pb2.FieldDescriptorProto
    types = {
        "int32": field_type.TYPE_INT32,
        "string": field_type.TYPE_STRING,
        "bool": field_type.TYPE_BOOL,
        "message": field_type.TYPE_MESSAGE,
    }
    file = descriptor_pb2.FileDescriptorProto(name="singa/job.proto", package="singa", syntax="proto2")
    cluster = file.message_type.add(name="ClusterProto")
    for name, (number, kind, default) in CLUSTER_FIELDS.items():
        entry = cluster.field.add(name=name, number=number, type=types[kind], label=field_type.LABEL_OPTIONAL)
        if default:
            entry.default_value = default
    job = file.message_type.add(name="JobProto")
    job.field.add(name="name", number=1, type=types["string"], label=field_type.LABEL_OPTIONAL)
    job.field.add(
        name="cluster", number=9, type=types["message"], type_name=".singa.ClusterProto", label=field_type.LABEL_OPTIONAL
    )
    job.field.add(name="gpu", number=18, type=types["int32"], label=field_type.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    get = message_factory.GetMessageClass
    return get(pool.FindMessageTypeByName("singa.ClusterProto")), get(pool.FindMessageTypeByName("singa.JobProto"))


def parse_strictly(text: str, message: Any, source: Source, lines: dict[int, str]) -> Any:
    """Parses `text` into `message` and returns it. `lines` is line -> field, for the ClusterError about a bad value."""
    from google.protobuf import text_format

    try:
        # protobuf leaves unknown escapes in strings to Python, which warns about them.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return text_format.Parse(text, message)
    except (text_format.ParseError, ValueError) as error:
        line = error.GetLine() if isinstance(error, text_format.ParseError) else None
        # "4:3 : 'the whole line': Couldn't parse integer: x" becomes its last part; the error has the line's number.
        fault = str(error).rpartition("': ")[2] or str(error)
        fault = re.sub(r"^\d+:\d+ : ", "", fault).replace('Message type "singa.', 'Message "')
        fault = fault if len(fault) < 160 else f"{fault[:160]}..."
        raise source.error(fault.rstrip("."), field=lines.get(line or 0, ""), line=line) from None
