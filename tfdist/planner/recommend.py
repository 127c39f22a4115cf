"""Chooses the option to recommend."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from tfdist.planner.option import Option
from tfdist.planner.predict import Prediction

CLOSE = 0.05
"""Options within this part of the fastest count as equally fast; predictions are not more exact than that."""


SAME = 0.01
"""Options that differ by less are as fast as each other in the table."""


Cost = Callable[[Prediction], float]


def ranked(predictions: Sequence[Prediction], cost: Cost | None = None) -> list[Prediction]:
    """Returns at least one prediction, the recommended one first. `cost` is for an hour; None without prices.

    Of those that are nearly as fast as the fastest, the cheapest comes first (without prices that with the fewest machines),
    then the one with the shortest sync period, which is the most accurate, then the one with the fewest ps. The others follow
    by speed.
    """
    fastest = max(each.examples_per_second for each in predictions)

    def price(each: Prediction) -> float:
        return each.option.machines if cost is None else cost(each)

    def order(each: Prediction) -> tuple[float, ...]:
        return price(each), each.option.period, each.option.ps, -each.examples_per_second

    close = sorted((each for each in predictions if each.examples_per_second >= (1 - CLOSE) * fastest), key=order)
    rest = [each for each in predictions if each.examples_per_second < (1 - CLOSE) * fastest]
    return [*close, *sorted(rest, key=lambda each: -each.examples_per_second)]


def shown(
    predictions: Sequence[Prediction], rows: int, cost: Cost | None = None, described: Option | None = None
) -> list[Prediction]:
    """Returns about `rows` of `ranked` predictions for a table: the first ones, and that of each strategy to recommend.

    Those with more ps that make nothing faster are left out, except for what the user describes and the first prediction: with
    fewer ps it may be just too slow to be recommended.
    """
    alike: dict[tuple[object, ...], list[Prediction]] = defaultdict(list)
    for each in predictions:
        alike[_without_ps(each)].append(each)
    rest = [each for each in predictions[1:] if not any(_is_in_vain(each, other) for other in alike[_without_ps(each)])]
    useful = [*predictions[:1], *rest]
    first = useful[:rows]
    for strategy in dict.fromkeys(each.option.strategy for each in useful):
        if not any(each.option.strategy == strategy for each in first):
            first.append(ranked([each for each in useful if each.option.strategy == strategy], cost)[0])
    chosen = {each.option for each in first} | {described}
    return [each for each in predictions if each.option in chosen]


def _without_ps(each: Prediction) -> tuple[object, ...]:
    mine = each.option
    return mine.strategy, mine.workers, mine.period, mine.delay, mine.fragments, mine.compression, mine.chief_apart


def _is_in_vain(each: Prediction, other: Prediction) -> bool:
    """Returns whether `other`, which differs in its ps only, is as fast as `each` with fewer ps and no more machines."""
    if other.examples_per_second < (1 - SAME) * each.examples_per_second:
        return False
    mine, its = each.option, other.option
    return its.machines <= mine.machines and its.ps <= mine.ps and (its.machines, its.ps) != (mine.machines, mine.ps)
