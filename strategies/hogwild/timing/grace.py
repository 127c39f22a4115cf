"""How long a group waits for the others of its round."""

import weakref
from collections import deque
from typing import Any

PERIODS = 4.0
"""A group waits for others at most as long as 4 of its sync periods take, if the user has not said.

On a busy machine with more groups than cores, a limit of 1 period ended 28 % of the waits and cost up to two points of
accuracy; a limit of 4 ended 0.5 % (benchmarks/quality.py).
"""

FIRST_SECONDS = 5.0
"""A group waits at most 5 s before its speed is known. The time to compile makes first periods of very different length."""

MUCH_SLOWER, WITH_SLOWER_PERIODS = 2.0, 1.0
"""If a group needs twice as long for its periods as the one that waits, or longer, the others wait for 1 of their periods. It
misses a round then, and no round waits for it as long as it stays as slow (rounds.py). Waiting for 4 periods would hold up all
groups whenever one is up to 4 times slower, period after period."""

CALLS = 8
"""The speed of a group is that of the fastest of its last 8 calls."""

FEW_CALLS, LONG_SECONDS = 3, 1.0
"""A group counts as slower than others if its last 8 calls were slower, or its last 3 if these took 1 s or longer. On 2 busy
cores (load 20 to 40) the last 3 calls of a group were twice as slow in 23 % of the cases with calls of 2 updates and 4 workers,
in 0.8 % with 16 updates and 8 workers, and never with 64 updates and 4 workers."""

SLOWER = 4.0
"""A group counts as at most 4 times slower than the fastest. Calls of a single update contain waits: some of them may have
waited for the grace time in each call, and a grace time that followed these calls would grow without a limit."""


class Grace:
    """Knows the speed of each group with each model.

    Args:
        periods: for how many sync periods a group waits; None for `PERIODS`, or `WITH_SLOWER_PERIODS`.
    """

    def __init__(self, periods: float | None = None) -> None:
        self._periods = periods
        # What groups run -> the last calls of each group: the seconds of a period for its updates, and for all else.
        self._calls: weakref.WeakKeyDictionary[Any, dict[int, deque[tuple[float, float]]]] = weakref.WeakKeyDictionary()
        self._running: weakref.ref[Any] | None = None

    def begin(self, program: Any) -> None:
        """Notes that groups run this program from now on: what trains a model."""
        self._running = weakref.ref(program)

    def note(self, program: Any, group: int, seconds: float, updates: float) -> None:
        """Notes how long a call took. The first call of each group, which compiles, does not count.

        Args:
            program: what the group ran.
            group: number of the group.
            seconds: the seconds for each sync period of the call. The call may have had fewer updates than a period.
            updates: those of them in which the group made its updates.
        """
        groups = self._calls.setdefault(program, {})
        if group in groups:
            groups[group].append((updates, max(0.0, seconds - updates)))
        else:
            groups[group] = deque(maxlen=CALLS)

    def seconds(self, group: int) -> float:
        """Returns the grace time of a group."""
        calls = self._last_calls()
        if group not in calls:
            return FIRST_SECONDS
        # All else than updates is messages, and waits. In each round one group waits for no other, so the least counts for all.
        rest = min(other for each in calls.values() for _, other in each)
        known = {group: _fastest(each) + rest for group, each in calls.items()}
        periods = self._periods
        if periods is None:
            slowest = max(_fastest(_telling(each)) for each in calls.values()) + rest
            periods = WITH_SLOWER_PERIODS if slowest >= MUCH_SLOWER * known[group] else PERIODS
        return periods * min(known[group], SLOWER * min(known.values()))

    def _last_calls(self) -> dict[int, list[tuple[float, float]]]:
        """Returns the last calls of each group that has made any besides its first."""
        program = self._running and self._running()
        groups = dict(self._calls.get(program, {})) if program is not None else {}
        return {group: list(each) for group, each in groups.items() if each}


def _fastest(calls: list[tuple[float, float]]) -> float:
    """Returns the seconds of a period in the fastest call; 0 without calls."""
    return min((updates for updates, _ in calls), default=0.0)


def _telling(calls: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the last calls of a group that tell whether it is slower than others; none as long as there are too few."""
    last = calls[-FEW_CALLS:]
    if len(last) == FEW_CALLS and sum(updates for updates, _ in last) >= LONG_SECONDS:
        return last
    return calls if len(calls) == CALLS else []
