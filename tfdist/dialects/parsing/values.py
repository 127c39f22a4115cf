"""`Values`: named texts, such as the options of a command line or the variables of an environment, and the numbers in them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.cluster import valid_host
from tfdist.dialects.parsing.document import MAX_TASKS, shown
from tfdist.dialects.parsing.shell import has_variable
from tfdist.errors import ClusterError, Source

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_TRUE, FALSE = ("1", "true", "yes", "on", "t", "y"), ("0", "false", "no", "off", "f", "n")


@dataclass(frozen=True)
class Values:
    """Named texts and their source.

    Attributes:
        source: for messages.
        texts: the texts by name.
        prefix: precedes names in messages: `--` for options of a command line. None for variables, which messages name in place
            of the source.
    """

    source: Source
    texts: Mapping[str, str]
    prefix: str | None = None

    def error(self, name: str, message: str) -> ClusterError:
        """Returns (does not raise) the error about the text `name`."""
        if self.prefix is None:
            return Source(self.source.dialect, name).error(message)
        return self.source.error(message, field=f"{self.prefix}{name}")

    def text(self, name: str, default: str = "") -> str:
        """Returns the text without surrounding blanks; `default` if it is empty or missing."""
        text = self.texts.get(name, "").strip()
        if text and self.prefix is not None:
            self.check_expanded(name, text)
        return text or default

    def check_expanded(self, name: str, text: str) -> None:
        """Raises ClusterError for a text with a shell variable. Variables of a process never have one."""
        if has_variable(text):
            raise self.error(
                name, f"{shown(text)} has a shell variable, and only literals that are set once are expanded; write its value"
            )

    def number(self, name: str, default: int | None = None, *, least: int = 0, most: int = MAX_TASKS) -> int:
        """Returns a whole number.

        Raises:
            ClusterError: if the text is not a whole number from `least` to `most`, or is missing and has no default.
        """
        text = self.text(name)
        if not text:
            if default is None:
                raise self.error(name, f"it is missing; expected a whole number from {least} to {most}")
            return default
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            raise self.error(name, f"{shown(text)} is not right; expected a whole number from {least} to {most}")
        return int(text)

    def port(self, name: str, default: int | None = None) -> int:
        """Returns a TCP port, 1 to 65535. Raises ClusterError as `number` does."""
        return self.number(name, default, least=1, most=65535)

    def host(self, name: str, default: str = "") -> str:
        """Returns a host name or address, an IPv6 address without brackets. Raises ClusterError if it is neither."""
        host = self.text(name, default).removeprefix("[").removesuffix("]")
        if host and not valid_host(host):
            raise self.error(name, f"{shown(host)} is neither a host name nor an address")
        return host

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns a truth value in the spelling of gflags, argparse or Paddle. Raises ClusterError for other texts."""
        text = self.text(name).lower()
        if text and text not in _TRUE + FALSE:
            raise self.error(name, f"{shown(text)} is not right; expected true or false")
        return text in _TRUE if text else default


def scalar_text(value: object, source: Source, field: str, line: int | None) -> str:
    """Returns the text of a value in a mapping of flags: a text, a number or a bool.

    Raises:
        ClusterError: for another value, and for a number of thousands of digits.
    """
    if not isinstance(value, str | int | bool):
        raise source.error(f"{shown(value)} is neither text nor a number", field=field, line=line)
    try:
        return str(value)
    except ValueError:  # str() refuses an int of thousands of digits.
        raise source.error("there is a number of thousands of digits", field=field, line=line) from None
