"""How fast worker groups are, and after how many updates each therefore exchanges."""

import contextlib
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
