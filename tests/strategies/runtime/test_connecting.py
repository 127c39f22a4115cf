"""What ends a task for which TensorFlow waits without a limit."""

import os
import subprocess
import sys

from support_paths import CHECKOUT

WAITS = """
import ctypes, sys
from tfdist.strategies.runtime import connecting
connecting.STACKS_SECONDS = 3.0
with connecting.bounded(0.3):
    pass
with connecting.bounded(1.0):
    ctypes.PyDLL(None).sleep(30)  # No other thread runs.
"""


def test_a_task_that_cannot_be_connected_says_so_before_its_stacks():
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, timeout=60, env=environment)
    sentence, _, stacks = done.stderr.partition("\nTimeout (")
    assert sentence.startswith("tfdist: TensorFlow has not connected this task to the others within 1 s"), done.stderr
    assert done.returncode == 1 and sentence.count("\n") == 0 and 'File "<string>"' in stacks
