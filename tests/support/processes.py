"""The processes of a test: those that have inherited its mark."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from warm import Process

from tfdist.machine import process_fields

MARK = "TFDIST_TEST_MARK"
"""Environment variable that every process of a test inherits."""


def processes_of(mark: str) -> dict[int, str]:
    """Returns process ids and command lines of the live processes that have inherited a mark."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            variables = Path(f"/proc/{entry}/environ").read_bytes()
            if f"{MARK}={mark}".encode() in variables and process_fields(entry)[0] != "Z":
                found[int(entry)] = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, IndexError):
            continue
    return found


def left_of(mark: str, within: float) -> dict[int, str]:
    """Returns the processes of a mark that are alive after `within` seconds; returns at once when none are."""
    deadline = time.monotonic() + within
    while (alive := processes_of(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive


def parent_of(pid: int | str) -> int:
    """Returns the process id of the parent of a process."""
    return int(process_fields(pid)[1])


def end_processes(mark: str) -> None:
    """Kills the live processes that have inherited a mark."""
    for pid in processes_of(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


@dataclass
class Job:
    """A started command with its output and its processes."""

    process: subprocess.Popen[bytes] | Process
    mark: str
    folder: Path
    output_path: Path

    def wait(self, timeout: float = 200.0) -> int:
        """Waits until the command has ended; returns its exit code."""
        return self.process.wait(timeout)

    @property
    def output(self) -> str:
        return self.output_path.read_text(errors="replace")

    def wait_for(self, text: str, timeout: float = 180.0, after: str = "") -> None:
        """Waits until the output contains `text`, after the last `after`."""
        deadline = time.monotonic() + timeout

        def has_text() -> bool:
            return text in (self.output.rpartition(after)[2] if after else self.output)

        while not has_text():
            assert time.monotonic() < deadline, f"no {text!r} within {timeout} s in:\n{self.output}"
            assert self.process.poll() is None or has_text(), f"ended without {text!r}:\n{self.output}"
            time.sleep(0.05)

    def pid_of(self, task: str) -> int:
        """Returns the process id that the program of a task has written (see the fixture `script`)."""
        return int((self.folder / f"pid-{task.replace(':', '-')}").read_text())

    def left(self, within: float = 0.0) -> dict[int, str]:
        """Returns its processes that are alive after `within` seconds; see `left_of`."""
        return left_of(self.mark, within)
