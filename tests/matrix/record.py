"""Runs in the environment of a combination and writes its result: `python tests/matrix/record.py NAME REPORT RESULT`.

REPORT is what pytest has written with `--junitxml`, or for a combination that is refused, the output of the launcher.
"""

import json
import platform
import sys
import xml.etree.ElementTree
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from matrix.combinations import COMBINATIONS

PACKAGES = ("tensorflow", "keras", "protobuf", "numpy", "absl-py", "PyYAML")


def tested(report: Path) -> dict[str, Any]:
    """Returns what pytest's report says: numbers of tests, the failed ones and why others were skipped."""
    cases = list(xml.etree.ElementTree.parse(report).iter("testcase"))
    by_outcome: dict[str, list[str]] = {"failure": [], "error": [], "skipped": []}
    for case in cases:
        for outcome in case:
            if outcome.tag in by_outcome:
                name = f"{case.get('classname')}.{case.get('name')}"
                by_outcome[outcome.tag].append(f"{name}: {(outcome.get('message') or '').partition(chr(10))[0]}")
    failed = by_outcome["failure"] + by_outcome["error"]
    return {
        "result": "FAIL" if failed or not cases else "PASS",
        "passed": len(cases) - len(failed) - len(by_outcome["skipped"]),
        "failed": failed,
        "skipped": by_outcome["skipped"],
    }


def refused(output: Path) -> dict[str, Any]:
    """Returns the last line of the launcher's output, without the name of the program."""
    lines = output.read_text(encoding="utf-8").splitlines() or [""]
    return {"result": "refused", "message": lines[-1].removeprefix("tfdist: ")}


def main(name: str, report: str, path: str) -> int:
    """Writes the result to the file `path`; returns 1 if it is not the expected one."""
    (combination,) = (each for each in COMBINATIONS if each.name == name)
    result = refused(Path(report)) if combination.refused else tested(Path(report))
    result["versions"] = {"python": platform.python_version()} | {package: version(package) for package in PACKAGES}
    Path(path).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if combination.refused:
        return not result["message"].startswith(combination.refused)
    return result["result"] != "PASS"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
