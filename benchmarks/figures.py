"""Where benchmarks put their tables: after the line `## Figures` of a Markdown file whose text somebody has written."""

from pathlib import Path

LINE = "## Figures"


def check(path: str | None) -> None:
    """Exits, before anything is measured, where there is such a path but no file with the line."""
    if path and LINE not in (Path(path).read_text() if Path(path).exists() else ""):
        raise SystemExit(f"nothing was measured: --markdown: {path} has no line `{LINE}`, after which the tables would go")


def put(path: str | None, text: str) -> None:
    """Prints the tables, and replaces those in the file."""
    print(text)
    if path:
        Path(path).write_text(Path(path).read_text().partition(LINE)[0] + f"{LINE}\n\n{text}")
