"""Puts tables of benchmarks after the line `## Figures` of a Markdown file, and leaves the text before it unchanged."""

import statistics
from collections.abc import Sequence
from pathlib import Path

LINE = "## Figures"


def check(path: str | None) -> None:
    """Exits before the measurement if a path is given, but no file with the line exists there."""
    if path and LINE not in (Path(path).read_text() if Path(path).exists() else ""):
        raise SystemExit(f"nothing was measured: --markdown: {path} has no line `{LINE}`, after which the tables would go")


def put(path: str | None, text: str) -> None:
    """Prints the tables, and replaces the tables in the file."""
    print(text)
    if path:
        Path(path).write_text(Path(path).read_text().partition(LINE)[0] + f"{LINE}\n\n{text}")


def spread(values: Sequence[float]) -> str:
    """Returns the median of some figures and their range, for a cell of a table."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"
