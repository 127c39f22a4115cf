"""`MemoryProbe`: how much memory the processes of tasks use."""

import os
import time
from collections.abc import Mapping

from tfdist.launch.jobs.events import Memory

PROBE_SECONDS = 2.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


class MemoryProbe:
    """Reads the resident memory of the tasks every two seconds."""

    def __init__(self) -> None:
        self._probed_at = 0.0

    def events(self, pids: Mapping[str, int]) -> list[Memory]:
        """Returns the memory of the tasks, whose process ids are `pids`; nothing if it is not yet time."""
        if time.monotonic() - self._probed_at < PROBE_SECONDS:
            return []
        self._probed_at = time.monotonic()
        sizes = ((task, resident(pid)) for task, pid in pids.items())
        return [Memory(task, size) for task, size in sizes if size is not None]


def resident(pid: int) -> int | None:
    """Returns the resident memory of a process in bytes; None if it is gone."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * _PAGE if pages else None  # A zombie has none.
