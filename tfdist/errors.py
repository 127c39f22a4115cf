"""The one error that a bad cluster description raises, and how its sentence is made."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


class ClusterError(ValueError):
    """A cluster description that cannot be used, told in one line.

    The line names where the fault is (file and line, variable or field), what is wrong and what would be right. Commands
    print it and exit with 2; nothing has been started when it is raised.
    """


@dataclass(frozen=True)
class Source:
    """Where a description came from: its dialect and the name of the file, variable or flag that held it."""

    dialect: str
    name: str

    def error(self, message: str, *, field: str = "", line: int | None = None) -> ClusterError:
        """Returns (does not raise) a `ClusterError` that starts with this source, the line and the field."""
        where = self.name if line is None else f"{self.name}:{line}"
        # One line whatever the text quotes: control characters would let a description write to the terminal.
        text = ": ".join(part for part in (where, field, message) if part)
        return ClusterError("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


def nearest(name: object, known: Iterable[str], *, otherwise: str = "") -> str:
    """Returns `"; did you mean X?"` for the known name closest to `name`, or `otherwise` where none is close."""
    # Only text is near to a name; str() of a caller's own object, or of an int of 5000 digits, would raise.
    matches = difflib.get_close_matches(name[:100], list(known), n=1, cutoff=0.6) if isinstance(name, str) else []
    return f"; did you mean {matches[0]}?" if matches else otherwise
