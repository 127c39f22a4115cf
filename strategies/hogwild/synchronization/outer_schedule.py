"""The outer momentum over a training: it grows as the optimizer's schedule lowers the learning rate.

How far an outer step may move the parameters depends on the learning rate of the groups: a momentum that is good at the end of
a training, when the learning rate is small, makes the first part of it unstable. With outer learning rate r, momentum b and
learning rate l, an outer step moves r / (1 - b) times as far as the groups did, and they move in proportion to l. While l
falls, b grows so that l * r / (1 - b) stays what it was at the highest l, until r / (1 - b) is the factor `farthest`. From
there it falls with l.
"""

from collections.abc import Callable

SAMPLES = 32
"""A training that continues from a file finds the highest learning rate so far in as many values of its schedule."""


def momentum_for(rate: float, momentum: float, fraction: float, farthest: float) -> float:
    """Returns the outer momentum.

    Args:
        rate: outer learning rate.
        momentum: outer momentum at the highest learning rate.
        fraction: the learning rate, as a fraction of the highest so far, from 0 to 1.
        farthest: how many times as far as the groups an outer step moves at most. Below rate / (1 - momentum) it has no effect.
    """
    factor = min(farthest, rate / (1 - momentum) / max(fraction, 1e-9))
    return max(momentum, 1 - rate / factor)


class OuterSchedule:
    """The outer rates of a training.

    Args:
        rates: outer learning rate and outer momentum at the highest learning rate.
        farthest: see `momentum_for`; None for the same rates all the time.
        learning_rate: returns the learning rate at the update of this number, counted over all groups; None for the same rates.
        every: updates of all groups for which the rates stay as they are: to ask a schedule takes time.
    """

    def __init__(
        self,
        rates: tuple[float, float],
        farthest: float | None = None,
        learning_rate: Callable[[int], float] | None = None,
        every: int = 1,
    ) -> None:
        self._first_rates = self._rates = rates
        self._farthest, self._learning_rate, self._every = farthest, learning_rate, every
        self._highest = 0.0
        self._part: int | None = None  # Part of the training, `every` updates long, for which the rates are known.

    def at(self, step: int) -> tuple[float, float]:
        """Returns outer learning rate and outer momentum at an update, by its number over all groups."""
        part = step // self._every
        if self._farthest is None or self._learning_rate is None or part == self._part:
            return self._rates
        begin = part * self._every
        before = [begin * number // SAMPLES for number in range(SAMPLES)] if self._part is None and begin else []
        now = self._learning_rate(begin)
        self._highest = max([self._highest, now, *map(self._learning_rate, before)])
        rate, momentum = self._first_rates
        if self._highest > 0:
            momentum = momentum_for(rate, momentum, now / self._highest, self._farthest)
        self._rates, self._part = (rate, momentum), part
        return self._rates
