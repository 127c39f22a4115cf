"""How many updates a group makes between its push and its pull, and in a period: both follow from measured times.

The reply should be there when the group pulls, and not long before. So the longest delay is the time of a synchronization
divided by that of an update, rounded up. Each update of the delay costs accuracy, so the delay is shorter where that hardly
costs time: if updates are quick and the network is slow, a group waits anyway. If the longest delay is too short for the
network, the period grows, as far as the user lets it. Each group measures both times in its first periods, and the chief
decides once.
"""

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdist.strategies.runtime import notice

FIRST = 1
"""The delay until it is measured."""

PART, MOST = 4, 4
"""The delay is at most a quarter of the updates between two pushes, and at most 4. A longer one costs too much accuracy: 16 of
64 cost 0.7 to 1.8 points against 2 (benchmarks/quality_simulated.md)."""

WORTH = 50
"""A longer delay has to make the time between two pushes shorter by more than a fiftieth."""

MEASURED = 4
"""Synchronizations of each group that count. Its first call, which compiles, does not."""

STEPS = 1000
"""The last so many updates count."""

COLUMNS = 2
"""Columns that a measuring group adds to the results of each step: the moment of its end, in seconds, and the seconds that the
synchronization took whose reply the group has pulled after the step, or 0."""


WAITED = 8
"""The period grows if groups would otherwise wait longer than an eighth of its updates take."""


def period_for(synchronization: float, update: float, between: int, longest: int) -> int:
    """Returns the updates between two pushes: `between`, doubled until groups hardly wait for the result, at most `longest`.

    The delay stays that of `between`: one that grew with the period would cost more than the waits.

    Args:
        synchronization: seconds from a push to the arrival of its reply.
        update: seconds of an update.
        between: updates between two pushes.
        longest: the most updates between two pushes.
    """
    waited = synchronization - _longest_delay(synchronization, update, between) * update
    while 2 * between <= longest and WAITED * waited > between * update:
        between *= 2
    return between


def delay_for(synchronization: float, update: float, between: int, period: int | None = None) -> int:
    """Returns the delay, in updates: the shortest that costs at most 1 / `WORTH` of the time.

    Args:
        synchronization: seconds from a push to the arrival of its reply.
        update: seconds of an update.
        between: updates between two pushes, as the user has them.
        period: those that `period_for` has found; None for `between`.
    """

    def cycle(delay: int) -> float:
        return (period or between) * update + max(0.0, synchronization - delay * update)

    longest = _longest_delay(synchronization, update, between)
    return next(each for each in range(FIRST, longest + 1) if WORTH * cycle(each) <= (WORTH + 1) * cycle(longest))


def _longest_delay(synchronization: float, update: float, between: int) -> int:
    most = max(FIRST, min(between // PART, MOST))
    return min(max(FIRST, math.ceil(synchronization / max(update, 1e-9))), most)


def updates_alone(rows: Any) -> list[float]:
    """Returns the seconds of the updates of a call that contain no wait for a reply.

    Args:
        rows: what the group has measured, numpy float64 [steps, COLUMNS].
    """
    ends, seconds = rows[:, 0], rows[:, 1]
    # After a pull, the time to the next end contains a wait.
    return [float(each) for each in np.diff(ends)[seconds[:-1] == 0]]


class MeasuredDelay:
    """The delay of all groups that train one model, and their period.

    Args:
        given: the delay that the user has chosen; None if it is to be measured.
        groups: number of worker groups.
        between: updates between two pushes.
        longest: the most updates between two pushes; None for `between`.
        fragments: number of fragments, which are pushed in turn.
        tell: prints a line.
        compression: how parameters travel.

    Attributes:
        updates: the delay.
        between: updates between two pushes.
    """

    def __init__(
        self,
        given: int | None,
        groups: int,
        between: int,
        longest: int | None = None,
        fragments: int = 1,
        tell: Callable[[str], object] | None = None,
        compression: str | None = None,
    ) -> None:
        self.updates = FIRST if given is None else given
        self.between = between
        self._groups, self._longest, self._fragments = groups, longest or between, fragments
        self._tell = tell or notice.tell
        self._advice = "--compression bf16 halves the bytes, and " if compression in (None, "float32") else ""
        self._is_decided = given is not None
        self._calls = [0] * groups
        self._synchronizations: dict[int, list[float]] = defaultdict(list)
        self._steps: deque[float] = deque(maxlen=STEPS)

    def note(self, group: int, rows: Any) -> None:
        """Takes what a group has measured in a call.

        Args:
            group: number of the group.
            rows: its `COLUMNS`, numpy float64 [steps, COLUMNS].
        """
        self._calls[group] += 1
        if self._is_decided or self._calls[group] == 1 or len(rows) < 2:
            return
        self._steps += updates_alone(rows)
        seconds = rows[:, 1]
        if pulled := seconds[seconds > 0].tolist():  # Calls of fewer steps than a period may have none.
            self._synchronizations[group] += pulled
        if self._steps and sum(map(len, self._synchronizations.values())) >= MEASURED * self._groups:
            self._decide(list(self._synchronizations.values()))

    def _decide(self, measured: Sequence[Sequence[float]]) -> None:
        # In a round, all but the last group also wait for others, which a longer delay does not change.
        synchronization, update = min(map(statistics.median, measured)), statistics.median(self._steps)
        between, self.between = self.between, period_for(synchronization, update, self.between, self._longest)
        self.updates = delay_for(synchronization, update, between, self.between)
        self._is_decided = True
        times = f"hogwild: a synchronization takes {1000 * synchronization:.3g} ms, an update {1000 * update:.3g} ms"
        updates = "update" if self.updates == 1 else f"{self.updates} updates"
        self._tell(f"{times}; groups pull the result {'one ' if self.updates == 1 else ''}{updates} after a push (--delay)")
        if self.between > between:
            self._tell(
                f"hogwild: so that groups wait less for the network, the sync period is {self.between * self._fragments} "
                f"updates from now on, not {between * self._fragments} (--longest_period)"
            )
        waits = synchronization - self.updates * update
        if waits > update:
            self._tell(
                f"hogwild: a longer delay would cost accuracy, so groups wait about {1000 * waits:.3g} ms in each "
                f"{1000 * (self.between * update + waits):.3g} ms; {self._advice}a longer --sync_period makes waits rarer"
            )
