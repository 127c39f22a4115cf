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

CALLS = 8
"""The speed of a group is that of the fastest of its last 8 calls, which has the shortest waits in it."""

SLOWER = 4.0
"""A group counts as at most 4 times slower than the fastest. In every round some group waits for nobody; others may have waited
for the grace time in each of their calls, and a grace time that followed these calls would grow without a limit."""


class Grace:
    """Knows the speed of each group with each model.

    Args:
        periods: for how many sync periods a group waits; None for `PERIODS`.
    """

    def __init__(self, periods: float | None = None) -> None:
        self._periods = PERIODS if periods is None else periods
        # What groups run -> the seconds per period of the last calls of each group.
        self._calls: weakref.WeakKeyDictionary[Any, dict[int, deque[float]]] = weakref.WeakKeyDictionary()
        self._running: weakref.ref[Any] | None = None

    def begin(self, program: Any) -> None:
        """Notes that groups run this program from now on: what trains a model."""
        self._running = weakref.ref(program)

    def note(self, program: Any, group: int, seconds: float) -> None:
        """Notes how long a call took. The first call of each group, which compiles, does not count.

        Args:
            program: what the group ran.
            group: number of the group.
            seconds: the seconds for each sync period of the call. The call may have fewer steps than a period.
        """
        groups = self._calls.setdefault(program, {})
        if group in groups:
            groups[group].append(seconds)
        else:
            groups[group] = deque(maxlen=CALLS)

    def seconds(self, group: int) -> float:
        """Returns the grace time of a group."""
        program = self._running and self._running()
        groups = dict(self._calls.get(program, {})) if program is not None else {}
        known = {number: min(calls) for number, calls in groups.items() if calls}
        if group not in known:
            return FIRST_SECONDS
        return self._periods * min(known[group], SLOWER * min(known.values()))
