"""How far Keras has read the logs of an epoch: worker groups are steps ahead of it."""

import logging
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

_log = logging.getLogger("tfdist")


class ReadLogs:
    """The logs of an epoch that Keras has not read yet, and the sums of those that it has read last.

    It lives as long as its epoch: `MetricLogs.reset` makes another one. Groups add logs ahead of Keras, which reads one after
    the other. What a callback assigns to a metric counts from the logs that it sees, as in one process, so the logs that Keras
    has not read move with it. While a callback calls `fit` or `train_on_batch` of the same model, `MetricLogs.pause` puts the
    object aside.

    Attributes:
        sums: the sums of the metrics' variables in the logs that Keras has read last, float64 [n]; None before the first.
        is_open: whether what the program assigns to the metrics is meant for this epoch: from its first step, unless others use
            them, such as an `evaluate` in a callback.
    """

    def __init__(self) -> None:
        self.sums: Any = None
        self.is_open = False
        self._unread: deque[tuple[Any, Any]] = deque()  # Logs with their sums.

    @property
    def unread(self) -> list[tuple[Any, Any]]:
        """The logs that Keras has not read yet, in order, each with its sums."""
        return list(self._unread)

    def add(self, logs: Iterable[Any], sums: Iterable[Any]) -> None:
        """Adds logs, each with its sums, that Keras reads after all others."""
        self._unread.extend(zip(logs, sums, strict=True))

    def note_read(self, logs: Any) -> None:
        """Notes that Keras reads these logs."""
        if not any(totals is logs for totals, _ in self._unread):  # They were left out.
            return
        while self._unread:
            totals, self.sums = self._unread.popleft()
            if totals is logs:
                return

    def further(self, place: slice) -> Any:
        """Returns what the unread logs add to the sums at a place. Leaves them all out, with a warning, if that is unknown."""
        if not self._unread:
            return 0.0
        if self.sums is not None and not np.isfinite(self.sums[place]).all():  # Nothing can be subtracted.
            _log.warning(
                "a callback resets metrics that are not finite: they leave out the %d steps that workers had made before it",
                len(self._unread),
            )
            self._unread.clear()
            return 0.0
        return self._unread[-1][1][place] - (0.0 if self.sums is None else self.sums[place])

    def move(self, place: slice, value: Any, size: int) -> Any:
        """Makes `value` the sums at `place` of the logs that Keras has read last. The sums of the unread ones go on from there.

        Args:
            place: of a variable in the sums.
            value: its value.
            size: how many numbers the sums are.

        Returns:
            The sums of all steps.
        """
        self.further(place)  # Leaves out what cannot move.
        before = np.zeros([size]) if self.sums is None else self.sums
        self.sums = after = with_value(before, place, value)
        self._unread = deque(
            (logs, with_value(sums, place, after[place] + (sums[place] - before[place]))) for logs, sums in self._unread
        )
        return self._unread[-1][1] if self._unread else after


def with_value(sums: Any, place: slice, value: Any) -> Any:
    """Returns a copy of `sums` with `value` at a place."""
    sums = np.array(sums)
    sums[place] = np.ravel(value)
    return sums
