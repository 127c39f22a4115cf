"""`ListenProbe`: notices when tasks begin to accept connections, for back ends whose tasks can be reached from here."""

import time
from collections.abc import Iterable

from tfdist.cluster import Task
from tfdist.launch.jobs.events import Listening
from tfdist.strategies.runtime.peers import is_listening

CONNECT_SECONDS = 0.2
"""Longest wait for the answer of one task. Meanwhile the caller does nothing else."""

REPEAT_SECONDS = 0.1


class ListenProbe:
    """The tasks that have not accepted a connection yet."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._missing = list(tasks)
        self._next = 0.0

    def events(self) -> list[Listening]:
        """Asks the tasks, at most ten times a second; returns an event for each that now listens for the first time."""
        if not self._missing or time.monotonic() < self._next:
            return []
        found = [task for task in self._missing if is_listening(task, CONNECT_SECONDS)]
        self._missing = [task for task in self._missing if task not in found]
        self._next = time.monotonic() + REPEAT_SECONDS
        return [Listening(task.name) for task in found]
