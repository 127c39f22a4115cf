"""`Turns`: lets worker groups begin their steps in an order, and finds out which order is the fastest on this network."""

import contextlib
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence

from tfdist.step_order import RECENT, Running, StepOrder, best, pause
from tfdist.strategies.runtime import notice

TRIED = (StepOrder.FREE, StepOrder.TOGETHER, StepOrder.TURNS)
SETTLE, MEASURED = 4, 5
"""Calls of each group in an order before they count, and those that count."""

REPEAT = 50
"""The orders are tried again after so many times as many calls."""

LATE = 3.0
"""A call that takes so many times as long as the last ones does not count, and nobody waits for it. Nor for the calls of a
group that makes so many times fewer than another one."""


class Turns:
    """The order in which the groups that train one model begin their steps.

    Each order is tried for some calls of each group, and the fastest is kept. A group waits at most for a step of another one.

    Args:
        clock: returns the current moment in seconds.
        wait: waits for a condition for some seconds.
        tell: prints a line.

    Attributes:
        order: the order.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Condition, float], object] = threading.Condition.wait,
        tell: Callable[[str], object] = notice.tell,
    ) -> None:
        self._clock, self._wait, self._tell = clock, wait, tell
        self._changed = threading.Condition()  # A call has begun or ended.
        self._begun: dict[int, tuple[float, int]] = {}  # Moment and steps of the calls that run, by group.
        self._lasted: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))  # Seconds of a step, by group.
        self._steps: dict[int, float] = {}  # Their means.
        self._ended: dict[int, float] = {}  # Moment of the last end, by group.
        self._speeds: dict[StepOrder, float] = {}
        self._kept: StepOrder | None = None  # None before all have been tried.
        self._is_trying = True
        self._left = 0  # Calls until the orders are tried again.
        self._try(TRIED[0])

    @contextlib.contextmanager
    def call(self, group: int, steps: int) -> Iterator[None]:
        """Surrounds a call of a group. Waits for its turn.

        Args:
            group: the number of the group.
            steps: the steps of the call, above 0.
        """
        self._begin(group, steps)
        is_done = False
        try:
            yield
            is_done = True
        finally:
            self._end(group, is_done)

    def _begin(self, group: int, steps: int) -> None:
        latest = None
        with self._changed:
            while True:
                now = self._clock()
                running = [each for other in self._begun if other != group and (each := self._running(other, now))]
                if latest is None:
                    latest = now + max((each.step for each in running), default=0.0)
                seconds = min(pause(self.order, now, running), latest - now)
                if seconds <= 0:
                    break
                self._wait(self._changed, seconds)
            self._begun[group] = now, steps
            self._changed.notify_all()

    def _running(self, group: int, now: float) -> Running | None:
        """Returns the call of a group; None if nobody knows when it will end."""
        begun, steps = self._begun[group]
        step = self._steps.get(group)
        return None if step is None or now - begun > LATE * steps * step else Running(begun, step, steps)

    def _end(self, group: int, is_done: bool) -> None:
        with self._changed:
            self._changed.notify_all()
            now = self._clock()
            begun, steps = self._begun.pop(group)
            last = self._ended.pop(group, None)
            if not is_done:
                return
            self._lasted[group].append((now - begun) / steps)
            self._steps[group] = statistics.fmean(self._lasted[group])
            self._ended[group] = now
            if last is not None:
                self._note(group, (now - last) / steps)

    # Which order is the fastest.

    def _try(self, order: StepOrder) -> None:
        self.order = order
        self._calls: dict[int, list[float]] = defaultdict(list)

    def _note(self, group: int, seconds: float) -> None:
        """Counts a call: that many seconds for each of its steps, with all waits."""
        if not self._is_trying:
            self._left -= 1
            if self._left <= 0:
                self._is_trying = True
                self._try(TRIED[0])
            return
        self._calls[group].append(seconds)
        counted = len(self._calls[group]) / (SETTLE + MEASURED)  # A group that is idle may have left.
        if len(self._steps) < 2 or (counted < LATE and any(len(self._calls[g]) < SETTLE + MEASURED for g in self._ended)):
            return
        self._speeds[self.order] = sum(1 / _mean(calls[SETTLE:]) for calls in self._calls.values() if len(calls) > SETTLE)
        following = TRIED.index(self.order) + 1
        if following < len(TRIED):
            self._try(TRIED[following])
            return
        self.order, self._is_trying = best(self._speeds), False
        self._left = REPEAT * len(TRIED) * (SETTLE + MEASURED) * len(self._calls)
        if self.order not in (self._kept, StepOrder.FREE):
            others = ", ".join(f"{self._speeds[each]:.3g} {each.value}" for each in TRIED if each is not self.order)
            self._tell(
                f"parameter_server: worker groups begin their steps {self.order.value}, which makes "
                f"{self._speeds[self.order]:.3g} steps per second ({others})"
            )
        self._kept = self.order


def _mean(seconds: Sequence[float]) -> float:
    """Returns the mean of times without those that contain a pause, such as the end of an epoch."""
    median = statistics.median(seconds)
    return statistics.fmean(each for each in seconds if each <= LATE * median)
