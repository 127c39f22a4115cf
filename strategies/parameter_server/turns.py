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

REPEAT, SOONEST = 50, 10
"""The orders are tried again after this many times as many calls, or after the second number if the speed has changed."""

CHANGED = 1.5
"""The speed has changed, as that of a link, if groups make this many times more or fewer steps than when orders were tried."""

LATE = 3.0
"""A call that takes this many times as long as the last ones does not count, and nobody waits for it. Nor for the calls of a
group that makes this many times fewer than another one."""


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
        self._chosen: StepOrder | None = None  # None before all have been tried.
        self._is_trying = True
        self._calls_left = 0  # Calls until the orders are tried again,
        self._earliest = 0  # and how many of them are left when that may happen sooner.
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
        self._calls[group].append(seconds)
        counted = len(self._calls[group]) / (SETTLE + MEASURED)  # A group that is idle may have left.
        is_measured = len(self._steps) > 1 and (
            counted >= LATE or all(len(self._calls[other]) >= SETTLE + MEASURED for other in self._ended)
        )
        if not self._is_trying:
            self._calls_left -= 1
            if self._calls_left <= 0 or (self._calls_left <= self._earliest and is_measured and self._has_changed()):
                self._is_trying = True
                self._try(TRIED[0])
        elif is_measured:
            self._speeds[self.order] = self._speed()
            following = TRIED.index(self.order) + 1
            if following < len(TRIED):
                self._try(TRIED[following])
            else:
                self._keep(best(self._speeds))

    def _speed(self) -> float:
        """Returns how many steps per second the calls have made that count."""
        return sum(1 / _mean(calls[SETTLE:]) for calls in self._calls.values() if len(calls) > SETTLE)

    def _has_changed(self) -> bool:
        """Returns whether the last calls were much faster or slower than those in the same order when it was tried."""
        change = self._speed() / self._speeds[self.order]
        self._calls.clear()
        return not 1 / CHANGED < change < CHANGED

    def _keep(self, order: StepOrder) -> None:
        """Keeps an order after all have been tried."""
        tried = len(TRIED) * (SETTLE + MEASURED) * len(self._calls)
        self._calls_left, self._earliest = REPEAT * tried, (REPEAT - SOONEST) * tried
        self._try(order)
        self._is_trying = False
        if order not in (self._chosen, StepOrder.FREE):
            others = ", ".join(f"{self._speeds[each]:.3g} {each.value}" for each in TRIED if each is not order)
            self._tell(
                f"parameter_server: worker groups begin their steps {order.value}, which makes "
                f"{self._speeds[order]:.3g} steps per second ({others})"
            )
        self._chosen = order


def _mean(seconds: Sequence[float]) -> float:
    """Returns the mean of times without those that contain a pause, such as the end of an epoch."""
    median = statistics.median(seconds)
    return statistics.fmean(each for each in seconds if each <= LATE * median)
