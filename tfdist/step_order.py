"""The order in which the workers of `parameter_server` begin their steps.

A step pulls the parameters, computes, and pushes the gradients. Two workers that begin together pull together, each at half of
the rate of the link of a ps, and push together: each direction of the link is idle for half of the time. In turns one pulls
while the other pushes, and they are up to twice as fast. Where ps and workers share machines it is the other way round: what
one worker pulls and what the other one pushes leave the same machine. Only chance decides the order, and it lasts: who is ahead
by a second stays ahead by a second.
"""

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

APART = 0.85
"""In turns, n workers begin at least this part of an n-th of a step after each other. Simulated: a larger one costs more where
steps take different times, a smaller one lets two workers pull at the same time."""

CLOSE = 0.1
"""Two workers whose steps begin within this part of a step begin together."""

MOST_WORKERS = 24
"""More workers have no order: some of them always pull while others push, and together all would wait for the slowest."""

GAIN = 0.02
"""An order is kept if it is slower than none by at most this part: without one chance decides, each time anew."""

RECENT = 3
"""A step is expected to take the mean of so many. Simulated: with the median or the shortest, three workers may fall into a
slow cycle."""


class StepOrder(enum.Enum):
    """An order. The value is for messages."""

    FREE = "as soon as they are free"
    TOGETHER = "together"
    TURNS = "in turns"


@dataclass(frozen=True)
class Running:
    """A call of a worker that runs.

    Attributes:
        begun: the moment when its first step began, seconds.
        step: how long a step of this worker takes, seconds.
        steps: the steps of the call.
    """

    begun: float
    step: float
    steps: int = 1

    def since(self, now: float) -> float:
        """Returns the seconds since its present step began."""
        before = min(int((now - self.begun) / self.step), self.steps - 1)
        return now - self.begun - before * self.step

    def left(self, now: float) -> float:
        """Returns the seconds until its next step begins; infinity in the last one, whose end is the end of the call."""
        is_last = now - self.begun >= (self.steps - 1) * self.step
        return math.inf if is_last else self.step - self.since(now)


def pause(order: StepOrder, now: float, others: Iterable[Running]) -> float:
    """Returns the seconds that a worker waits before it begins its steps; infinity until a call of another ends."""
    running = list(others)
    if order is StepOrder.FREE or not running:
        return 0.0
    if order is StepOrder.TURNS:
        mean = sum(each.step for each in running) / len(running)
        return max(0.0, APART * mean / (len(running) + 1) - min(each.since(now) for each in running))
    first = min(running, key=lambda each: each.begun)
    close = CLOSE * first.step
    return first.left(now) if first.since(now) > close and first.left(now) > close else 0.0


def best(speeds: Mapping[StepOrder, float]) -> StepOrder:
    """Returns the order to keep, by the steps per second in each."""
    order = max((StepOrder.TOGETHER, StepOrder.TURNS), key=lambda each: speeds[each])
    return order if speeds[order] >= (1 - GAIN) * speeds[StepOrder.FREE] else StepOrder.FREE
