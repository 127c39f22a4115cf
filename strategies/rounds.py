"""Groups that wait for each other to complete a round, each at most as long as its last period took.

Only where groups wait for the answer anyway (`Synchronisation.overlap` is off) and the rule works in rounds. Groups of equal
speed then train as in DiLoCo; one that is slower or gone delays the others by no more than a period of their own.
"""

import threading
import time
from collections.abc import Hashable, Iterable


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
        limit = 0.0 if begun is None else time.monotonic() - begun
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
