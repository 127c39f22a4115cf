"""`ListenProbe`: notices when tasks begin to accept connections, for back ends whose tasks can be reached from here."""

import contextlib
import os
import time
from collections.abc import Iterable

from tfdist.cluster import Task
from tfdist.launch.jobs.events import Listening
from tfdist.strategies.runtime.peers import is_listening

CONNECT_SECONDS = 0.2
"""Longest wait for the answer of one task. Meanwhile the caller does nothing else."""

REPEAT_SECONDS = 0.1

SPARE_FILES = 4
"""Files that one look opens: a connection, its duplicate, what waits for it, and a file of the name service."""


class ListenProbe:
    """The tasks that have not accepted a connection yet.

    It holds files open for its looks until all have. If the tasks took the last ones (ulimit -n), none of them would be found,
    and a training that has finished would count as one without tasks.

    Raises:
        OSError: if there are too many open files.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._missing = list(tasks)
        self._next = 0.0
        self._spare: list[int] = []
        self._hold()

    def events(self) -> list[Listening]:
        """Asks the tasks, at most ten times a second; returns an event for each that now listens for the first time."""
        if not self._missing or time.monotonic() < self._next:
            return []
        self.close()
        found = [task for task in self._missing if is_listening(task, CONNECT_SECONDS)]
        self._missing = [task for task in self._missing if task not in found]
        with contextlib.suppress(OSError):  # Another thread has taken one.
            self._hold()
        self._next = time.monotonic() + REPEAT_SECONDS
        return [Listening(task.name) for task in found]

    def close(self) -> None:
        """Closes the files that it holds."""
        while self._spare:
            os.close(self._spare.pop())

    def _hold(self) -> None:
        while self._missing and len(self._spare) < SPARE_FILES:
            self._spare.append(os.open(os.devnull, os.O_RDONLY))
