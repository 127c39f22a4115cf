"""Options of a command line, and the numbers and addresses in them and in variables. Nothing is ever executed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.cluster import valid_host
from tfdist.dialects.document import MAX_TASKS, close, shown
from tfdist.errors import ClusterError, Source, nearest

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_TRUE, _FALSE = ("1", "true", "yes", "on", "t", "y"), ("0", "false", "no", "off", "f", "n")


@dataclass(frozen=True)
class Values:
    """Named texts, and where they came from.

    Attributes:
        source: for messages.
        texts: by name.
        prefix: of the names in messages: `--` for options of a command line; None for variables of the environment, which
            are sources of their own.
    """

    source: Source
    texts: Mapping[str, str]
    prefix: str | None = None

    def error(self, name: str, message: str) -> ClusterError:
        """An error about one of them."""
        if self.prefix is None:
            return Source(self.source.dialect, name).error(message)
        return self.source.error(message, field=f"{self.prefix}{name}")

    def text(self, name: str, default: str = "") -> str:
        """The text without blanks around it; an empty one counts as not given."""
        return self.texts.get(name, "").strip() or default

    def number(self, name: str, default: int | None = None, *, least: int = 0, most: int = MAX_TASKS) -> int:
        """A whole number. Raises ClusterError where it is none, out of bounds, or missing without a default."""
        text = self.text(name)
        if not text:
            if default is None:
                raise self.error(name, f"it is missing; expected a whole number from {least} to {most}")
            return default
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            raise self.error(name, f"{shown(text)} is not right; expected a whole number from {least} to {most}")
        return int(text)

    def port(self, name: str, default: int | None = None) -> int:
        """A TCP port, 1 to 65535."""
        return self.number(name, default, least=1, most=65535)

    def flag(self, name: str, default: bool = False) -> bool:
        """A truth value, as gflags, argparse and Paddle write them."""
        text = self.text(name).lower()
        if text and text not in _TRUE + _FALSE:
            raise self.error(name, f"{shown(text)} is not right; expected true or false")
        return text in _TRUE if text else default


def names(text: str) -> frozenset[str]:
    """The words of a text, as a set of names."""
    return frozenset(text.split())


def options(
    words: list[str],
    source: Source,
    valued: frozenset[str],
    switches: frozenset[str] = frozenset(),
    *,
    letters: Mapping[str, str] | None = None,
    is_program: bool = False,
) -> Values:
    """The options of a command line by name, with `_` for `-`; of one that is given twice the last counts.

    Args:
        words: the command line without its program.
        source: for messages.
        valued: names of options that take a value, `--name value` or `--name=value`.
        switches: names of options that take none, or one after `=` only.
        letters: names of options by their letter, `-m`.
        is_program: whether the line is that of a training program, with options of its own among the others. Else it is that
            of a launcher: the first word that is no option is the user's program, and the rest its arguments.

    Raises:
        ClusterError: for an option without its value, and for one that is not known (in a program: nearly known).
    """
    found: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word in ("-", "--"):
            if is_program:
                continue
            break
        name, equals, value = word.partition("=")
        if word[1:2] in (letters or {}) and not equals and len(word) > 2:
            name, equals, value = word[:2], "=", word[2:]  # -r3
        name = _name(name, letters or {})
        if name in valued:
            if not equals:
                value = next(rest, "")
                if not value:
                    raise source.error("this option has no value", field=f"--{name}")
            found[name] = value
        elif name in switches:
            found[name] = value if equals else "true"
        elif name.removeprefix("no") in switches and not equals:
            found[name.removeprefix("no")] = "false"  # gflags
        elif not is_program or close(name, valued | switches, 0.85):
            known = valued | switches
            raise source.error(f"there is no such option{nearest(name, sorted(known))}", field=shown(word, 40)[1:-1])
    return Values(source, found, "--")


def _name(word: str, letters: Mapping[str, str]) -> str:
    if word[1:2] != "-" and word[1:] in letters:
        return letters[word[1:]]
    return word.lstrip("-").replace("-", "_")


def address(values: Values, name: str, text: str, default_port: int | None = None) -> tuple[str, int]:
    """`host:port`, an IPv6 host in brackets, as host and port. Raises ClusterError where it is none."""
    match = re.fullmatch(r"(?:tcp://|grpc://|http://)?(\[[^\]]*\]|[^:]*)(?::([0-9]{1,5}))?", text.strip(), re.ASCII)
    host = match[1].removeprefix("[").removesuffix("]") if match else ""
    port = int(match[2]) if match and match[2] else default_port
    if not match or port is None or not valid_host(host) or not 1 <= port <= 65535:
        raise values.error(name, f"{shown(text)} is not an address; expected host:port")
    return host, port


def nodes(values: Values, default: str) -> int:
    """`--nnodes`, a number or `N:N`. Raises ClusterError for a range: the number of nodes may change then."""
    text = values.text("nnodes", default)
    parts = [Values(values.source, {"nnodes": part}, values.prefix) for part in text.split(":", 1)]
    bounds = [part.number("nnodes", least=1) for part in parts]
    if bounds[0] != bounds[-1]:
        raise values.error(
            "nnodes",
            f"{shown(text)} lets the number of nodes change, and tfdist's clusters keep their size; start the program with "
            "this command and call tfdist.strategy() without a description, or give one number",
        )
    return bounds[0]


def check_count(values: Values, name: str, count: int) -> None:
    """Raises ClusterError where an option asks for more processes than a cluster may have."""
    if count > MAX_TASKS:
        raise values.error(name, f"that makes {count} processes, and tfdist supports {MAX_TASKS}")
