"""Schedules: after how many updates a worker group synchronizes, for short epochs and for groups of different speeds."""

import contextlib
import math
import statistics
import time
from collections.abc import Iterator, Sequence

from tfdist.strategies.keras_hooks.interface import Readers

SMOOTHING = 0.5
"""Weight of the last call in the speed of a group. Below 1, so that one slow call does not make a slow group."""


MOST_PERIODS = 4
CALLS_LEFT = 8
MOST_BYTES = 2**22
"""A call has up to 4 periods while each group gets at least 8 more calls in the epoch, and if its batches have at most 4 MiB.

Groups so end an epoch at about the same time, as with calls of one period. Preparing a larger message costs more than the calls
that it saves.
"""


def period_in_epoch(batches: int | None, groups: int, period: int) -> int:
    """Returns the updates between two synchronizations. In an epoch of few periods they are fewer, to divide it equally.

    Otherwise some groups would make one more call than the others. The others would wait for its end, and its round would have
    the progress of these groups alone.

    Args:
        batches: batches in an epoch; None if not known.
        groups: number of worker groups.
        period: updates between two synchronizations in long epochs.
    """
    if batches is None or groups == 1:
        return period
    periods = math.ceil(batches / (groups * period))
    return math.ceil(batches / (groups * periods)) if 1 < periods <= CALLS_LEFT else period


def steps_per_call(batches: int | None, groups: int, period: int, taken: int = 0) -> int:
    """Returns how many batches a group gets at a time: a whole period, or in short epochs an equal part of the epoch.

    Of an epoch of unknown length the calls grow, so that one group does not take all of a short one.

    Args:
        batches: batches in an epoch; None if not known.
        groups: number of worker groups.
        period: updates between two synchronizations.
        taken: batches of the epoch that groups have got before.
    """
    if batches is None:
        batches = max(taken, 2 * groups)
    return min(period, math.ceil(batches / groups))


def aligned_since(since: Sequence[int]) -> int:
    """Returns how many updates since its last synchronization each group counts when an epoch begins: the median, rounded up.

    In a short epoch one group may make an update less than the others, and would then synchronize an epoch after them. Its
    progress would always be a round old, and with momentum such progress makes the training unstable.

    Args:
        since: the updates of each group since its last synchronization.
    """
    return math.ceil(statistics.median(since))


SHOWN_SECONDS = 0.1
"""With a progress bar a call of several periods takes at most this long. Keras draws its bar every 0.05 s at most."""


WORTH_SECONDS = 5.0
"""With a progress bar, calls have one period until groups have trained for this long. Calls of several periods run another
function. Tracing it takes up to a second, which is not worth it in a short training."""


def most_periods(readers: Readers, period: int, every: int, step_seconds: float, seconds: float) -> int:
    """Returns how many periods a call may have at most, so that those who read the logs of steps get them in time.

    Args:
        readers: who reads them.
        period: updates between two synchronizations.
        every: Keras' `steps_per_execution`, after which they are read.
        step_seconds: seconds of a step of a group.
        seconds: how long the groups have trained.
    """
    if readers is Readers.NOBODY:
        return MOST_PERIODS
    is_worth_it = readers is Readers.PROGRESS_BAR and seconds >= WORTH_SECONDS
    return max(1, every // period, int(SHOWN_SECONDS / max(period * step_seconds, 1e-9)) if is_worth_it else 1)


def periods_per_call(left: int | None, groups: int, period: int, batch_bytes: int | None, most: int = MOST_PERIODS) -> int:
    """Returns how many whole periods a group may get at a time.

    Args:
        left: batches that are left in the epoch; None if not known.
        groups: number of worker groups.
        period: updates between two synchronizations.
        batch_bytes: bytes that the chief sends for a batch; None if not known.
        most: the most for those who read the logs of steps, see `most_periods`.
    """
    if left is None or batch_bytes is None:
        return 1
    by_bytes = MOST_BYTES // (period * batch_bytes) if batch_bytes else MOST_PERIODS
    return max(1, min(MOST_PERIODS, most, left // (groups * period * CALLS_LEFT), by_bytes))


def is_due(since: int, steps: int, period: int) -> bool:
    """Returns whether a group synchronizes before its next call.

    A group synchronizes at the start of a call. This chooses the call whose start is nearest to the end of the period.

    Args:
        since: updates that the group has made since its last synchronization.
        steps: updates in the next call.
        period: updates between two synchronizations.
    """
    return 2 * since + steps >= 2 * period


Speed = float | None
"""Steps per second; None if not known yet."""


def adaptive_period(speed: Speed, speeds: Sequence[Speed], period: int) -> int:
    """Returns floor(speed / highest speed * period), at least 1. All groups then synchronize equally often (arXiv 2401.09135).

    Args:
        speed: speed of the group. None leaves the period as it is.
        speeds: speeds of all groups.
        period: updates between two synchronizations of the fastest group.
    """
    known = [each for each in speeds if each is not None]
    if speed is None or not known:
        return period
    return max(1, int(speed / max(known) * period))


class Speeds:
    """Measures the speed of each group, and returns the period that suits it."""

    def __init__(self, groups: int) -> None:
        self._speeds: list[Speed] = [None] * groups
        self._calls = [0] * groups

    @contextlib.contextmanager
    def measured(self, group: int, steps: int) -> Iterator[None]:
        """Measures a call of a group that makes `steps` steps. Ignores the first call of each group, which also compiles."""
        begin = time.monotonic()
        yield
        speed = steps / max(time.monotonic() - begin, 1e-9)
        self._calls[group] += 1
        if self._calls[group] > 1:
            before = self._speeds[group]
            self._speeds[group] = speed if before is None else SMOOTHING * speed + (1 - SMOOTHING) * before

    def period(self, group: int, period: int) -> int:
        """Returns the period of a group for a sync period."""
        return adaptive_period(self._speeds[group], self._speeds, period)
