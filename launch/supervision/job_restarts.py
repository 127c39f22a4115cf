"""Restarts of a whole job, which continues from its backup (`--max_restarts`)."""

from tfdist.launch.jobs.restarts import delay_after, is_steady
from tfdist.launch.supervision.supervisor import Outcome


class JobRestarts:
    """Decides whether a job starts again after an attempt, and when.

    Args:
        limit: restarts, at most, until an attempt has trained for `window`.
        window: seconds.

    Attributes:
        count: how often the job was started again.
        used: the restarts that count towards the limit.
    """

    def __init__(self, limit: int, window: float) -> None:
        self._limit, self._window = limit, window
        self.count = self.used = 0
        self._quick = 0  # Attempts that ended quickly where an earlier one had been already, one after the other.
        self._reached = (0, 0)

    def after(self, outcome: Outcome) -> float | None:
        """Counts an attempt; returns the seconds before the next one, or None if the job has ended."""
        if outcome.trained_seconds >= self._window:
            self.used = 0
        gets_on = is_steady(outcome.trained_seconds, self._window) or outcome.reached > self._reached
        self._reached = max(self._reached, outcome.reached)
        if outcome.failure is None or not outcome.failure.may_pass or self.used >= self._limit:
            return None
        self._quick = 0 if gets_on else self._quick + 1
        self.count, self.used = self.count + 1, self.used + 1
        return delay_after(self._quick)
