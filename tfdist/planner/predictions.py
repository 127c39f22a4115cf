"""Predicts all options of a table: by the formulas, and those that the table shows by the simulator, where that knows more."""

from collections.abc import Sequence

from tfdist.planner import recommend
from tfdist.planner.costs import Costs
from tfdist.planner.option import Hardware, Option
from tfdist.planner.predict import Prediction, predict, simulated
from tfdist.planner.simulated import BUNDLES, MOST_WORKERS

MANY = 64
"""With more workers nobody has compared the formulas with real runs. So such options are simulated, too."""

FIRST = 12
"""So many of the fastest options are simulated in any case, so that none is left out that the formula finds somewhat slow."""

MOST_MESSAGES = 20_000
"""Messages of a cycle that are simulated for one table: some seconds. A larger table keeps formulas for the rest."""


def predictions(
    costs: Costs, hardware: Hardware, options: Sequence[Option], rows: int, cost: recommend.Cost | None = None
) -> list[Prediction]:
    """Returns the predictions, the recommended one first.

    `hogwild`, and `parameter_server` with more than 64 workers, are simulated if the table shows them. The other options keep
    the prediction of their formula.

    Args:
        costs: what steps and exchanges cost.
        hardware: the machines.
        options: what to compare.
        rows: rows of the table.
        cost: see `recommend.ranked`.
    """
    found = {option: predict(costs, hardware, option) for option in options}
    left, is_first = MOST_MESSAGES, True
    while True:
        ranked = recommend.ranked(list(found.values()), cost)
        shown = recommend.shown(ranked, max(rows, FIRST if is_first else 0), cost)
        wanted = [each.option for each in shown if not each.is_simulated and _needs(each.option)]
        wanted = [option for option in wanted if _messages(option) <= left]
        if not wanted:
            return ranked
        for option in wanted:
            if _messages(option) <= left:
                left -= _messages(option)
                found[option] = simulated(costs, hardware, option)
        is_first = False


def _needs(option: Option) -> bool:
    return option.strategy == "hogwild" or (option.strategy == "parameter_server" and option.workers > MANY)


def _messages(option: Option) -> int:
    """Returns how many messages workers and ps exchange in a cycle, as they are simulated."""
    workers = min(option.workers, MOST_WORKERS)
    ps = max(1, option.ps * workers // option.workers)
    return workers * (ps if option.colocated else min(ps, BUNDLES))
