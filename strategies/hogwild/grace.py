"""How long a group waits for the others of its round."""

import time
from collections import deque
from collections.abc import Callable

PERIODS = 4.0
"""A group waits for others at most as long as 4 of its sync periods take, if the user has not said.

On a busy machine with more groups than cores, a limit of 1 period ended 28 % of the waits and cost up to two points of
accuracy; a limit of 4 ended 0.5 % (benchmarks/quality.py).
"""

FIRST_SECONDS = 5.0
"""A group waits at most 5 s before its speed is known. The time to compile makes first periods of very different length."""

CALLS = 8
"""The speed is that of the fastest of the last 8 calls, so that it has no waits in it."""


class Grace:
    """Measures the speed of each group.

    Args:
        groups: number of worker groups.
        clock: returns the current moment in seconds.
        periods: for how many sync periods a group waits; None for `PERIODS`.
    """

    def __init__(self, groups: int, clock: Callable[[], float] = time.monotonic, periods: float | None = None) -> None:
        self._clock = clock
        self._periods = PERIODS if periods is None else periods
        self._calls: list[deque[float]] = [deque(maxlen=CALLS) for _ in range(groups)]  # Seconds per period.
        self._begun: list[tuple[float, float] | None] = [None] * groups  # Of the call that runs: the moment, its periods.

    def begin(self, group: int, periods: float) -> None:
        """Notes that a group begins a call.

        Args:
            group: number of the group.
            periods: the sync periods that the steps of the call make, may be below 1.
        """
        now, begun = self._clock(), self._begun[group]
        if begun is not None:
            self._calls[group].append((now - begun[0]) / begun[1])
        self._begun[group] = now, periods

    def seconds(self, group: int) -> float:
        """Returns the grace time of a group."""
        calls = list(self._calls[group])[1:]  # The first call compiles.
        return self._periods * min(calls) if calls else FIRST_SECONDS
