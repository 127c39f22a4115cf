"""Groups that wait for each other to complete a round, each at most a few times as long as its last period took.

Only where groups wait for the answer anyway (`Synchronization.overlap` is off) and the rule works in rounds. Groups of about
equal speed then train as in DiLoCo; one that is much slower or gone delays the others by no more than this.
"""

import threading
import time
from collections.abc import Hashable, Iterable

PERIODS = 4.0
"""A group waits for others at most this many times as long as its last period took.

On a busy machine with more groups than cores a limit of one period ended 28 % of the waits, four 0.5 %; with the
former, accuracy was up to two points lower (benchmarks/quality.py).
"""

FIRST_SECONDS = 5.0
"""And this long after its first period, which the time to compile makes of very different length."""


class Rounds:
    """The rounds of some blocks, as the chief sees them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pushed: dict[Hashable, set[int]] = {}
        self._complete: dict[Hashable, int] = {}
        self._since: dict[tuple[Hashable, int], float] = {}  # When the group's period began.

    def wait(self, block: Hashable, group: int, live: Iterable[int]) -> bool:
        """After a group has pushed: waits until all others have; whether it was another that completed the round.

        Args:
            block: what was pushed.
            group: the number of the group that has.
            live: the numbers of the groups that train.
        """
        begun = self._since.get((block, group))
        limit = FIRST_SECONDS if begun is None else PERIODS * (time.monotonic() - begun)
        with self._changed:
            pushed = self._pushed.setdefault(block, set())
            pushed.add(group)
            before = self._complete.get(block, 0)
            by_another = False
            if pushed.issuperset(live):
                pushed.clear()
                self._complete[block] = before + 1
                self._changed.notify_all()
            else:
                by_another = self._changed.wait_for(lambda: self._complete.get(block, 0) > before, limit)
        self._since[block, group] = time.monotonic()
        return by_another

    def begin_anew(self, block: Hashable) -> None:
        """After something else has completed the round: nobody has pushed to the next."""
        with self._changed:
            self._pushed.pop(block, None)
            self._complete[block] = self._complete.get(block, 0) + 1
            self._changed.notify_all()
