"""A moment until which something is waited for. Code that calls other waits passes it on, so that they share one limit."""

import time
from collections.abc import Callable


class Deadline:
    """A moment on a clock.

    Args:
        at: the moment, in seconds of the clock.
        clock: returns the current moment in seconds; it never goes back.
    """

    def __init__(self, at: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._at = at
        self._clock = clock

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> "Deadline":
        """Returns the deadline `seconds` from now."""
        return cls(clock() + seconds, clock)

    def remaining(self) -> float:
        """Returns the seconds that are left; 0.0 after the deadline."""
        return max(0.0, self._at - self._clock())

    def expired(self) -> bool:
        """Returns whether no time is left."""
        return self._clock() >= self._at

    def at_least(self, seconds: float) -> "Deadline":
        """Returns the later of this deadline and the one `seconds` from now."""
        return Deadline(max(self._at, self._clock() + seconds), self._clock)

    def within(self, seconds: float) -> "Deadline":
        """Returns the earlier of this deadline and the one `seconds` from now."""
        return Deadline(min(self._at, self._clock() + seconds), self._clock)
