"""`Stacks`: the Python stacks of tasks that do not print them themselves.

A task prints its stacks when it gets SIGQUIT (run_program.py). One that has replaced that, or is stopped, does not. py-spy
(https://github.com/benfred/py-spy) reads the stacks of such a process from outside, where it is installed and may do so.
"""

import os
import shutil
import subprocess
import time
from typing import IO

from tfdist.launch.jobs.events import Output

ANSWER_SECONDS = 0.5
"""How long a task may take to print its stacks, before py-spy is asked."""

PY_SPY_SECONDS = 10.0


class Stacks:
    """The tasks that were asked for their stacks and have not answered."""

    def __init__(self) -> None:
        self._answer_deadlines: dict[str, float] = {}  # Task -> until when it may answer.
        self._running: dict[str, tuple[subprocess.Popen[bytes], IO[bytes], float]] = {}

    def ask(self, task: str) -> None:
        """Notes that a task got SIGQUIT."""
        if shutil.which("py-spy") is not None:
            self._answer_deadlines[task] = time.monotonic() + ANSWER_SECONDS

    def printed(self, task: str) -> None:
        """Notes that a task has printed something."""
        self._answer_deadlines.pop(task, None)

    def events(self, pids: dict[str, int]) -> list[Output]:
        """Asks py-spy for the stacks of tasks that have not answered; returns what it has printed."""
        now = time.monotonic()
        for task in [task for task, until in self._answer_deadlines.items() if now > until]:
            del self._answer_deadlines[task]
            if task in pids and task not in self._running:
                self._start(task, pids[task])
        found = []
        for task, (process, file, until) in list(self._running.items()):
            if process.poll() is None and now < until:
                continue
            process.kill()
            process.wait()
            file.seek(0)
            found.append(Output(task, b"\ntfdist: py-spy says:\n" + file.read() + b"\n"))
            file.close()
            del self._running[task]
        return found

    def close(self) -> None:
        """Ends what runs."""
        for process, file, _ in self._running.values():
            process.kill()
            process.wait()
            file.close()

    def _start(self, task: str, pid: int) -> None:
        file = os.fdopen(os.memfd_create("stacks"), "w+b")
        try:
            process = subprocess.Popen(
                ["py-spy", "dump", "--pid", str(pid)], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
        except OSError:
            file.close()
            return
        self._running[task] = (process, file, time.monotonic() + PY_SPY_SECONDS)
