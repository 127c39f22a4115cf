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

WITH_SLOWER_PERIODS = 1.0
"""If another group is much slower, a group waits for 1 of its own periods. The slow one misses a round then, and no round waits
for it as long as it stays as slow (rounds.py). Waiting for 4 periods would hold up all groups whenever one is up to 4 times
slower, period after period."""

CALLS = 8
"""The speed of a group is that of the fastest of its last 8 calls."""

MUCH_SLOWER = ((CALLS, 2.0), (3, 3.0))
"""A group is much slower than one that waits if its periods take twice as long in its last 8 calls, or 3 times as long in the 3
that it has made so far. Fewer calls do not tell: on a busy machine one slow call would end rounds without the group."""

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
        known = _seconds_of_periods(calls)
        periods = self._periods
        if periods is None:
            has_slower = any(_is_much_slower(len(each), known[other] / known[group]) for other, each in calls.items())
            periods = WITH_SLOWER_PERIODS if has_slower else PERIODS
        return periods * min(known[group], SLOWER * min(known.values()))

    def _last_calls(self) -> dict[int, list[tuple[float, float]]]:
        """Returns the last calls of each group that has made any besides its first."""
        program = self._running and self._running()
        groups = dict(self._calls.get(program, {})) if program is not None else {}
        return {group: list(each) for group, each in groups.items() if each}


def _is_much_slower(calls: int, times: float) -> bool:
    """Returns whether a group whose fastest call took so many times as long as that of another one is much slower."""
    return any(calls >= enough and times >= limit for enough, limit in MUCH_SLOWER)


def _seconds_of_periods(calls: dict[int, list[tuple[float, float]]]) -> dict[int, float]:
    """Returns the seconds of a period of each group, without waits for others.

    All else than updates is messages, and waits. In each round one group waits for no other, so the least counts for all.
    """
    rest = min((other for each in calls.values() for _, other in each), default=0.0)
    return {group: min(updates for updates, _ in each) + rest for group, each in calls.items()}
