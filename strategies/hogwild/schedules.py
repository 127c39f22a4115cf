"""After how many updates a worker group exchanges: as near to the sync period as the length of epochs and its speed allow."""

import contextlib
import math
import time
from collections.abc import Iterator

SMOOTHING = 0.5
"""Weight of the last call in the speed of a group: one slow call is no slow group."""


class Speeds:
    """The speeds of the groups, in steps per second."""

    def __init__(self, groups: int) -> None:
        self._speeds: list[float | None] = [None] * groups
        self._calls = [0] * groups

    @contextlib.contextmanager
    def measured(self, group: int, steps: int) -> Iterator[None]:
        """Around a call of a group that makes `steps` steps. The first of each group also compiles, and does not count."""
        begin = time.monotonic()
        yield
        speed = steps / max(time.monotonic() - begin, 1e-9)
        self._calls[group] += 1
        if self._calls[group] > 1:
            before = self._speeds[group]
            self._speeds[group] = speed if before is None else SMOOTHING * speed + (1 - SMOOTHING) * before

    def period(self, group: int, period: int) -> int:
        """H_i = floor(v_i / v_max * H), at least 1: every group exchanges about as often (DyLU, 2401.09135)."""
        speed, known = self._speeds[group], [speed for speed in self._speeds if speed is not None]
        if speed is None or not known:
            return period
        return max(1, int(speed / max(known) * period))


def steps_per_call(batches: int | None, groups: int, period: int) -> int:
    """How many batches a group gets at a time: those of a whole period, in short epochs no more than its part of them.

    Args:
        batches: in an epoch; None where that is not known.
        groups: the number of groups.
        period: updates between two exchanges.
    """
    return min(period, math.ceil(batches / groups)) if batches else period


def is_due(since: int, steps: int, period: int) -> bool:
    """Whether a group exchanges before its next `steps`, having made `since` after its last exchange.

    An exchange is at the begin of a call: at that which is nearest to the end of the period.
    """
    return 2 * since + steps >= 2 * period
