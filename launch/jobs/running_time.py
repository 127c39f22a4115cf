"""`RunningTime`: a clock that stands still while this process is stopped (SIGSTOP, Ctrl-Z).

What tasks report meanwhile is read only when the process goes on. A limit that had passed in between would be found before it.
"""

import time
from collections.abc import Callable

LONGEST_TICK_SECONDS = 1.0
"""Longest time between two readings that counts. After a longer one, this process was stopped."""


class RunningTime:
    """The seconds for which this process has run. Read it several times a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._now = self._read_at = clock()

    def __call__(self) -> float:
        """Returns the present moment on this clock."""
        now = self._clock()
        self._now += min(now - self._read_at, LONGEST_TICK_SECONDS)
        self._read_at = now
        return self._now
