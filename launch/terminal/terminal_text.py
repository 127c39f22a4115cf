"""What of a task's output may reach a terminal: text and colors, but nothing that moves the cursor or changes the terminal."""

import os
import re
from collections.abc import Mapping

_COLOR = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: cursor, screens, colors.
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC and other strings: titles, the clipboard.
    r"|\x1b[ -/]*[0-~]?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
RESET = "\x1b[0m"


def shown(text: str, colors: bool) -> str:
    """Returns a line of a task without what controls a terminal. Colors, if they are kept, end with the line."""
    if text.isprintable():
        return text
    clean = _CONTROL.sub(lambda match: match[0] if colors and _COLOR.fullmatch(match[0]) else "", text)
    return clean + RESET if "\x1b" in clean else clean


def cut(text: str, length: int) -> str:
    """Returns the beginning of what `shown` has returned. A color that is cut apart is left out, and all end there."""
    return re.sub(r"\x1b[^m]*$", "", text[:length]) + "..." + (RESET if "\x1b" in text else "")


_NOTEBOOK = (("TERM", "xterm-color"), ("PAGER", "cat"), ("GIT_PAGER", "cat"))
"""What the kernel of a notebook sets for commands such as `!tfdist run` (ipykernel/zmqshell.py, `init_environment`)."""


def draws(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the terminal can move its cursor, by the name that `TERM` gives it.

    A command in a notebook has a pseudo-terminal. The notebook adds whatever is drawn there to the output of the cell.
    """
    is_notebook = all(environ.get(name) == value for name, value in _NOTEBOOK)
    return environ.get("TERM", "") not in ("", "dumb", "unknown") and not is_notebook


def has_colors(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the user and the terminal want colors (https://no-color.org)."""
    return draws(environ) and not environ.get("NO_COLOR")
