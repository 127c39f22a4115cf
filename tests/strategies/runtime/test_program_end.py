"""How a program ends, as exit functions learn it."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tfdist.strategies.runtime import program_end

HEAD = f"""
import sys
sys.path.append({str(Path(program_end.__file__).parent)!r})  # The file alone: importing the package would take most of the time.
from program_end import at_program_end
at_program_end(lambda failed: print("failed" if failed else "finished", flush=True))
"""

CAUGHT = """
try:
    sys.exit(1)
except SystemExit:
    pass
"""


@pytest.mark.parametrize(
    ("body", "code", "end"),
    [
        ("", 0, "finished"),
        ("sys.exit()", 0, "finished"),
        ("sys.exit(0)", 0, "finished"),
        ("sys.exit(3)", 3, "failed"),
        ("sys.exit('no data')", 1, "failed"),
        ("exit(4)", 4, "failed"),
        ("raise ValueError", 1, "failed"),
        (CAUGHT, 0, "finished"),
        (CAUGHT + "sys.exit(0)", 0, "finished"),
        ("import threading; t = threading.Thread(target=sys.exit, args=(1,)); t.start(); t.join(); sys.exit()", 0, "finished"),
        ("def main():\n    try:\n        sys.exit(5)\n    finally:\n        sys.stdout.flush()\nmain()", 5, "failed"),
    ],
)
@pytest.mark.parametrize("as_module", [False, True], ids=["script", "module"])
def test_an_exit_code_other_than_0_is_a_failure(tmp_path, body, code, end, as_module):
    (tmp_path / "program_that_ends.py").write_text(HEAD + textwrap.dedent(body))
    command = ["-m", "program_that_ends"] if as_module else ["program_that_ends.py"]
    ended = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert (ended.returncode, ended.stdout) == (code, f"{end}\n")
