"""Predicts all options of a table: by a formula, and those that the table shows by the simulator."""

from collections.abc import Sequence

from tfdist.planner import recommend
from tfdist.planner.costs import Costs
from tfdist.planner.option import Hardware, Option
from tfdist.planner.predict import Prediction, predict, simulated
from tfdist.planner.simulated import BUNDLES, MOST_WORKERS
from tfdist.planner.simulated_ring import MOST_IN_RING
from tfdist.planner.simulated_steps import beginnings
from tfdist.planner.ways import way_of

MANY = 64
"""With more workers nobody has compared the predictions with real runs."""

FIRST = 12
"""So many of the fastest options are simulated in any case, so that none is left out that the formula finds somewhat slow."""

MOST_MESSAGES = 10_000
"""Messages of a cycle that are simulated for one table: some seconds. A larger table keeps formulas for the rest."""


def predictions(
    costs: Costs,
    hardware: Hardware,
    options: Sequence[Option],
    rows: int,
    cost: recommend.Cost | None = None,
    described: Option | None = None,
) -> list[Prediction]:
    """Returns the predictions, the recommended one first.

    Options that the table shows are simulated. The others keep the prediction of the formula.
    """
    found = {option: predict(costs, hardware, option) for option in options}
    left, is_first = MOST_MESSAGES, True
    while True:
        ranked = recommend.ranked(list(found.values()), cost)
        shown = recommend.shown(ranked, max(rows, FIRST if is_first else 0), cost, described)
        wanted = [each.option for each in shown if not each.is_simulated and _needs(each.option)]
        wanted = [option for option in wanted if _messages(costs, option) <= left]
        if not wanted:
            return ranked
        for option in wanted:
            if _messages(costs, option) <= left:
                left -= _messages(costs, option)
                found[option] = simulated(costs, hardware, option)
        is_first = False


def _needs(option: Option) -> bool:
    return option.strategy not in ("default", "mirrored")


def _messages(costs: Costs, option: Option) -> int:
    """Returns how many messages workers and ps send each other in a cycle, as they are simulated."""
    way = way_of(costs, option)
    if option.strategy == "multi_worker_mirrored":
        workers = min(option.workers, MOST_IN_RING)
        return 2 * (workers - 1) * workers
    workers = min(option.workers, MOST_WORKERS)
    ps = max(1, option.ps * workers // option.workers)
    messages = workers * (ps if option.colocated else min(ps, BUNDLES))
    return messages * (beginnings(way) if option.strategy == "parameter_server" else 1)
