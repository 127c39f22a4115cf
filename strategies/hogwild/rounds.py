"""Lets groups wait for each other to complete a round, for at most a few times the duration of their last period.

Used only without overlap (`Synchronization.overlap`), where groups wait for the reply anyway, and with an outer optimizer that
works in rounds. Groups of about equal speed then train as in DiLoCo. A group that is much slower, or gone, delays the others by
no more than the limit.
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterable

from tfdist.strategies.runtime.deadline import Deadline

PERIODS = 4.0
"""A group waits for others at most 4 times as long as its last period took.

On a busy machine with more groups than cores, a limit of 1 period ended 28 % of the waits and cost up to two points of
accuracy; a limit of 4 ended 0.5 % (benchmarks/quality.py).
"""

FIRST_SECONDS = 5.0
"""A group waits at most 5 s after its first period. The time to compile makes first periods of very different length."""


class Rounds:
    """The rounds of all blocks, as the chief sees them.

    Args:
        clock: returns the current moment in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._pushed: dict[Hashable, set[int]] = {}
        self._complete: dict[Hashable, int] = {}
        self._since: dict[tuple[Hashable, int], float] = {}  # When the group's period began.

    def wait(self, block: Hashable, group: int, live: Iterable[int]) -> bool:
        """Waits, after a group has pushed, until all other groups have pushed or the limit is over.

        Args:
            block: the block that the group has pushed.
            group: number of the group.
            live: numbers of the groups that train.

        Returns:
            Whether the round is complete and other groups have pushed to it. The push of any of them may have completed it on
            the ps, whose answers need not arrive in the order of the pushes.
        """
        begin = self._since.get((block, group))
        limit = FIRST_SECONDS if begin is None else PERIODS * (self._clock() - begin)
        deadline = Deadline.after(limit, self._clock)
        with self._changed:
            pushed = self._pushed.setdefault(block, set())
            pushed.add(group)
            before = self._complete.get(block, 0)
            if pushed.issuperset(live):
                is_complete = len(pushed) > 1
                pushed.clear()
                self._complete[block] = before + 1
                self._changed.notify_all()
            else:
                is_complete = self._changed.wait_for(lambda: self._complete.get(block, 0) > before, deadline.remaining())
        self._since[block, group] = self._clock()
        return is_complete

    def forget(self, block: Hashable) -> None:
        """Forgets the rounds of a block that no group pushes any more."""
        with self._changed:
            self._pushed.pop(block, None)
            self._complete.pop(block, None)
            for key in [key for key in self._since if key[0] == block]:
                del self._since[key]

    def restart(self, block: Hashable) -> None:
        """Starts a new round, after something else has completed the current one."""
        with self._changed:
            self._pushed.pop(block, None)
            self._complete[block] = self._complete.get(block, 0) + 1
            self._changed.notify_all()
