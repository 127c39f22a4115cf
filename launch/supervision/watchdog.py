"""`Watchdog`: notices that nothing was heard of the training for too long: no output, or no step."""

import time

LONGEST_TICK_SECONDS = 1.0
"""Longest time between two ticks that counts. After a longer one, this process was stopped as well."""


class Watchdog:
    """Counts the seconds since something was last heard."""

    def __init__(self, timeout: float | None) -> None:
        """Begins to count. `timeout` is the limit in seconds; None for none."""
        self._timeout = timeout
        self._silent = 0.0
        self._last_tick = time.monotonic()

    @property
    def silent(self) -> float:
        """Seconds since something was last heard."""
        return self._silent

    def heard(self) -> None:
        """Starts the count again."""
        self._silent = 0.0

    def tick(self) -> bool:
        """Counts on; returns whether the limit is exceeded. Call it several times a second."""
        now = time.monotonic()
        self._silent += min(now - self._last_tick, LONGEST_TICK_SECONDS)
        self._last_tick = now
        return self._timeout is not None and self._silent > self._timeout
