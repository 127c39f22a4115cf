"""How far Keras has read the logs of an epoch: worker groups are steps ahead of it."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


class ReadLogs:
    """The logs of an epoch that Keras has not read yet, and the sums of those that it has read last.

    It lives as long as its epoch: `MetricLogs.reset` makes another one. Groups add logs ahead of Keras, which reads one after
    the other. What a callback assigns to a metric counts from the logs that it sees, as in one process, so the logs that Keras
    has not read move with it.

    Attributes:
        sums: the sums of the metrics' variables in the logs that Keras has read last, float64 [n]; None before the first.
        is_back: whether others have used the metrics, such as an `evaluate` in a callback, and the program is in the epoch
            again, before its next step.
    """

    def __init__(self) -> None:
        self.sums: Any = None
        self.is_back = False
        self._unread: deque[tuple[Any, Any]] = deque()  # Logs with their sums.

    @property
    def unread(self) -> list[tuple[Any, Any]]:
        """The logs that Keras has not read yet, in order, each with its sums."""
        return list(self._unread)

    def add(self, logs: Iterable[Any], sums: Iterable[Any]) -> None:
        """Adds logs, each with its sums, that Keras reads after all others."""
        self._unread.extend(zip(logs, sums, strict=True))

    def hand_over(self, logs: Any) -> None:
        """Notes that Keras gets these logs."""
        while self._unread:
            each, self.sums = self._unread.popleft()
            if each is logs:
                return

    def move(self, place: slice, value: Any, size: int) -> Callable[[Any], Any]:
        """Makes `value` the sums at `place` of the logs that Keras has read last. The sums of the unread ones go on from there.

        Args:
            place: of a variable in the sums.
            value: its value.
            size: how many numbers the sums are.

        Returns:
            A function that moves the sums of all steps in the same way.
        """
        before = np.zeros([size]) if self.sums is None else self.sums
        self.sums = after = with_value(before, place, value)
        has_unread = bool(self._unread)

        def moved(sums: Any) -> Any:
            further = sums[place] - before[place] if has_unread else 0.0  # Of what is infinite nothing can be subtracted.
            return with_value(sums, place, after[place] + further)

        with np.errstate(invalid="ignore"):
            self._unread = deque((logs, moved(sums)) for logs, sums in self._unread)
        return moved


def with_value(sums: Any, place: slice, value: Any) -> Any:
    """Returns a copy of `sums` with `value` at a place."""
    sums = np.array(sums)
    sums[place] = np.ravel(value)
    return sums
