"""What ends a task for which TensorFlow waits without a limit."""

import pytest

pytestmark = pytest.mark.cluster

WAITS = """
import ctypes, sys
from tfdist.strategies.runtime import connecting
connecting.STACKS_SECONDS = 3.0
with connecting.bounded(0.3):
    pass
with connecting.bounded(1.0):
    ctypes.PyDLL(None).sleep(30)  # No other thread runs.
"""


def test_a_task_that_cannot_be_connected_says_so_before_its_stacks(tmp_path, run_python):
    code = run_python(tmp_path, "-c", WAITS, timeout=60)
    output = (tmp_path / "output.txt").read_text()
    sentence, _, stacks = output.partition("\nTimeout (")
    assert sentence.startswith("tfdist: TensorFlow has not connected this task to the others within 1 s"), output
    assert code == 1 and sentence.count("\n") == 0 and 'File "<string>"' in stacks
