"""Chooses the option to recommend."""

import dataclasses
from collections.abc import Callable, Sequence

from tfdist.planner.predict import Prediction

CLOSE = 0.05
"""Options within this part of the fastest count as equally fast; predictions are not more exact than that."""


SAME = 0.01
"""Options that differ by less are as fast as each other in the table."""


def ranked(predictions: Sequence[Prediction], cost: Callable[[Prediction], float] | None = None) -> list[Prediction]:
    """Returns predictions, the recommended one first.

    Of those that are nearly as fast as the fastest, the cheapest comes first (without prices that with the fewest machines),
    then the one with the shortest sync period, which is the most accurate, then the one with the fewest ps. The others follow
    by speed.

    Args:
        predictions: at least one.
        cost: returns what an option costs for an hour; None without prices.
    """
    fastest = max(each.examples_per_second for each in predictions)

    def price(each: Prediction) -> float:
        return each.option.machines if cost is None else cost(each)

    def order(each: Prediction) -> tuple[float, ...]:
        return price(each), each.option.period, each.option.ps, -each.examples_per_second

    close = sorted((each for each in predictions if each.examples_per_second >= (1 - CLOSE) * fastest), key=order)
    rest = [each for each in predictions if each.examples_per_second < (1 - CLOSE) * fastest]
    return [*close, *sorted(rest, key=lambda each: -each.examples_per_second)]


def shown(predictions: Sequence[Prediction], rows: int) -> list[Prediction]:
    """Returns about `rows` of ranked predictions for a table: the first ones, and the best of each strategy.

    Those with more ps that make nothing faster are left out.
    """
    useful = [each for each in predictions if not any(_is_in_vain(each, other) for other in predictions)]
    first = useful[:rows]
    for each in useful:
        if not any(each.option.strategy == other.option.strategy for other in first):
            first.append(each)
    return first


def _is_in_vain(each: Prediction, other: Prediction) -> bool:
    """Returns whether `other` reaches the speed of `each` in the same way with fewer ps and no more machines."""
    mine, its = each.option, other.option
    same = dataclasses.replace(mine, ps=its.ps, colocated=its.colocated) == its
    fewer = (its.machines, its.ps) != (mine.machines, mine.ps) and its.machines <= mine.machines and its.ps <= mine.ps
    return same and fewer and other.examples_per_second >= (1 - SAME) * each.examples_per_second
