"""The table of versions in BUILD.md, made from the results of `nox`. This command writes it:

python tests/matrix/table.py
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from matrix.combinations import COMBINATIONS, ROOT
from matrix.record import PACKAGES

PAGE = ROOT / "BUILD.md"
BEGIN = "<!-- Written by tests/matrix/table.py from tests/matrix/results/ -->\n\n"
END = "\n<!-- End of the table -->\n"

TITLES = {"python": "Python", "tensorflow": "TensorFlow", "keras": "Keras", "numpy": "NumPy"}


def table(results: list[dict[str, Any]]) -> str:
    """Returns the table of `results` in Markdown."""
    names = ("python", *PACKAGES)
    lines = [f"| {' | '.join(TITLES.get(name, name) for name in names)} | result |", "|" + "---|" * (len(names) + 1)]
    for result in results:
        lines.append(f"| {' | '.join(result['versions'][name] for name in names)} | {_outcome(result)} |")
    return "\n".join(lines) + "\n"


def _outcome(result: dict[str, Any]) -> str:
    if result["result"] == "refused":
        return f"refused: {result['message'].partition(';')[0]}"
    if result["result"] == "PASS":
        return f"PASS: {result['passed']} tests"
    return "FAIL: " + ", ".join(failed.partition(":")[0] for failed in result["failed"])


def stored_results() -> list[dict[str, Any]]:
    """Returns the results in the repository, in the order of the combinations."""
    return [json.loads(each.result.read_text(encoding="utf-8")) for each in COMBINATIONS if each.result.exists()]


def page(text: str) -> str:
    """Returns the text of BUILD.md with the table of the stored results."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table(stored_results()) + END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
