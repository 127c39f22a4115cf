"""How many groups can still push in an epoch, so that at its end no group waits for groups that have nothing more to do."""

import threading


class CallsLeft:
    """Counts the calls of an epoch that are scheduled, and those that each group has begun.

    Args:
        groups: number of worker groups.
    """

    def __init__(self, groups: int) -> None:
        self._lock = threading.Lock()
        self._groups = groups
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Notes that an epoch begins."""
        with self._lock:
            self._begun = [0] * self._groups
            self._queued = 0
            self._is_complete = False

    def schedule(self, is_last: bool) -> None:
        """Notes that a call is scheduled.

        Args:
            is_last: whether the epoch has no more calls after it.
        """
        with self._lock:
            self._queued += 1
            self._is_complete = is_last

    def begin(self, group: int) -> None:
        """Notes that a group begins a call."""
        with self._lock:
            self._begun[group] += 1
            self._queued = max(0, self._queued - 1)

    def pushing(self, group: int) -> int:
        """Returns how many groups push to the round of the call that `group` has begun last, if all are equally fast."""
        with self._lock:
            if not self._is_complete:
                return self._groups
            as_far = sum(begun >= self._begun[group] for begun in self._begun)
            return as_far + min(self._queued, self._groups - as_far)
