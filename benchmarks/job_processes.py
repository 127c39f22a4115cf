"""The processes of a job: which there are, and how long one was really stopped."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path


def working_in(folder: Path) -> list[int]:
    """Returns the ids of the processes whose working folder is `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd") == str(folder) and _state(int(entry.name)) not in ("Z", ""):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


class Stopped:
    """Measures in a thread how long a process is stopped: on a busy machine the launcher sends SIGCONT late.

    Use it as a context manager.

    Args:
        processes: returns the ids of the processes.

    Attributes:
        seconds: how long the process was stopped that was stopped for longest; 0.0 for none.
    """

    def __init__(self, processes: Callable[[], list[int]]) -> None:
        self.seconds = 0.0
        self._processes = processes
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Stopped":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        since: dict[int, float] = {}
        while not self._is_over.wait(0.05 if since else 0.5):
            for pid in list(since) or self._processes():
                if _state(pid) == "T":
                    since.setdefault(pid, time.monotonic())
                    self.seconds = max(self.seconds, time.monotonic() - since[pid])
                else:
                    since.pop(pid, None)


def _state(pid: int) -> str:
    """Returns the letter of /proc for what a process does; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


if __name__ == "__main__":
    raise SystemExit("benchmarks/faults.py uses this file")
