"""Restarts of a whole job, which continues from its backup (`--max_restarts`)."""

import time
from collections.abc import Callable

from tfdist.launch.jobs.restarts import delay_after, is_steady
from tfdist.launch.supervision.supervisor import Outcome

AWAY_SECONDS = 15.0
"""Delay, at most, before a host that does not answer is tried again: a restart takes less than 30 s once it does."""


class JobRestarts:
    """Decides whether a job starts again after an attempt, and when: `limit` times at most, until an attempt has trained for
    `window` seconds. A host that the job had used before may be away for `patience` seconds.

    A host that has restarted answers after some minutes only. Until then no attempt can begin, so these do not count.

    Attributes:
        count: how often the job was started again.
        used: the restarts that count towards the limit.
    """

    def __init__(self, limit: int, window: float, patience: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._window, self._patience, self._clock = limit, window, patience, clock
        self.count = self.used = 0
        self._quick = 0  # Attempts that ended quickly where an earlier one had been already, one after the other.
        self._reached = (0, 0)
        self._away = 0  # Attempts that a host was away for, one after the other.
        self._away_since: float | None = None  # None before an attempt has begun.

    def after(self, outcome: Outcome) -> float | None:
        """Counts an attempt; returns the seconds before the next one, or None if the job has ended."""
        if outcome.trained_seconds >= self._window:
            self.used = 0
        gets_on = is_steady(outcome.trained_seconds, self._window) or outcome.reached > self._reached
        self._reached = max(self._reached, outcome.reached)
        if outcome.failure is None or not outcome.failure.may_pass:
            return None
        if not outcome.failure.is_host_away:
            self._away, self._away_since = 0, self._clock()
        elif self._limit and self._away_since is not None and self._clock() - self._away_since < self._patience:
            self._away, self.count = self._away + 1, self.count + 1
            return min(delay_after(self._away), AWAY_SECONDS)
        if self.used >= self._limit:
            return None
        self._quick = 0 if gets_on else self._quick + 1
        self.count, self.used = self.count + 1, self.used + 1
        return delay_after(self._quick)
