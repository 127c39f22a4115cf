"""How many groups can still push in an epoch, so that at its end no group waits for groups that have nothing more to push."""

import math
import threading


class PushesLeft:
    """Counts the calls of an epoch that are scheduled, and the pushes that each group has begun."""

    def __init__(self, groups: int) -> None:
        self._lock = threading.Lock()
        self._groups = groups
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Notes that an epoch begins."""
        with self._lock:
            self._begun = [0] * self._groups
            self._queued = 0
            self._later: float = math.inf

    def schedule(self, calls: int, later: int | None) -> None:
        """Notes that calls are scheduled, for any group. It counts a push for each, with the call or before it.

        Args:
            calls: number of calls.
            later: how many calls come after them in the epoch; None if that is not known.
        """
        with self._lock:
            self._queued += calls
            self._later = math.inf if later is None else later

    def begin(self, group: int, is_in_round: bool) -> None:
        """Notes that a group begins a call.

        Args:
            group: number of the group.
            is_in_round: whether it pushes progress, which is in a round.
        """
        with self._lock:
            self._begun[group] += is_in_round
            self._queued = max(0, self._queued - 1)

    def all_begin(self, group: int, fragments: int) -> bool:
        """Returns whether `group` has begun its first push of a fragment in the epoch, and no group has begun a later push.

        Args:
            group: number of the group.
            fragments: number of fragments, which groups push in turn.
        """
        with self._lock:
            return 0 < self._begun[group] == max(self._begun) <= fragments

    def pushing(self, group: int) -> int:
        """Returns how many groups push to the round of the call that `group` has begun last, if all are equally fast."""
        with self._lock:
            as_far = sum(begun >= self._begun[group] for begun in self._begun)
            return int(as_far + min(self._queued + self._later, self._groups - as_far))
