"""The lock that a thread holds while it traces a function of a worker group, and a clock that does not count this time."""

import threading
import time
from collections.abc import Callable


class TracingLock:
    """A reentrant lock with a clock that stands still while a thread holds the lock.

    To trace a large model takes minutes. Threads that wait for the lock meanwhile do not wait for a worker.

    Args:
        clock: returns the current moment in seconds; it never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._times = threading.Lock()
        self._depth = 0
        self._holder: int | None = None  # The thread.
        self._counted = 0.0  # What `now` has reached when the lock was last taken or released.
        self._since = self._begin = clock()

    @property
    def seconds_held(self) -> float:
        """For how long the lock has been held, in all."""
        return self._clock() - self._begin - self.now()

    def now(self) -> float:
        """Returns a moment, in seconds, on a clock that does not count the time for which the lock was held."""
        with self._times:
            return self._counted + (0.0 if self._depth else self._clock() - self._since)

    @property
    def is_held(self) -> bool:
        """Whether a thread holds the lock."""
        return self._depth > 0

    @property
    def is_held_here(self) -> bool:
        """Whether this thread holds the lock."""
        return self._holder == threading.get_ident()

    def __enter__(self) -> None:
        self._lock.acquire()
        with self._times:
            if not self._depth:
                self._counted += self._clock() - self._since
            self._depth += 1
            self._holder = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        with self._times:
            self._depth -= 1
            if not self._depth:
                self._since, self._holder = self._clock(), None
        self._lock.release()


tracing_lock = TracingLock()
"""Held while a function of a worker group is traced."""
