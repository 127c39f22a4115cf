"""Hogwild's outer optimizers by name, what each accepts, and the defaults of each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class OuterOptions:
    """What an outer optimizer accepts.

    Attributes:
        options: the fields of `Synchronization` that only some outer optimizers accept, and this one does.
        rates: default outer learning rate and outer momentum.
        rates_of_fewer: the same for less than a number of worker groups, by that number, smallest first. The average of few
            groups has more noise, so the outer optimizer makes smaller steps.
        rates_with_adam: the same if Adam, AdamW, Adamax or Nadam trains the local replicas; None means one of the others.
        farthest: how many times as far as the groups an outer step moves at most, if the outer momentum grows while the
            learning rate of the groups falls; None if it does not.
        farthest_from: number of worker groups from which on it grows; with Adam and its relatives it grows with 2.
        pushes_parameters: whether groups push parameters. Otherwise they push progress, which can be compressed.
        weighs_groups: whether it multiplies what a group pushes by the weight of the group.
        allows_adaptive: whether groups may have different periods.
    """

    options: tuple[str, ...] = ()
    rates: tuple[float, float] = (1.0, 0.0)
    rates_of_fewer: tuple[tuple[int, tuple[float, float]], ...] = ()
    rates_with_adam: tuple[float, float] | None = None
    farthest: float | None = None
    farthest_from: int = 4
    pushes_parameters: bool = False
    weighs_groups: bool = True
    allows_adaptive: bool = True


RATE_AND_MOMENTUM = ("outer_learning_rate", "outer_momentum")
ROUNDS = ("quorum", "grace", "average_momentum")
"""Options of outer optimizers that work in rounds."""

OUTER_OPTIMIZERS = {
    "average": OuterOptions(("outer_learning_rate",)),
    "nesterov": OuterOptions(
        (*RATE_AND_MOMENTUM, *ROUNDS),
        rates=(0.7, 0.5),
        rates_of_fewer=((4, (0.5, 0.5)), (8, (0.7, 0.3))),
        rates_with_adam=(0.7, 0.5),
        farthest=3.5,
    ),
    "delayed_nesterov": OuterOptions(
        RATE_AND_MOMENTUM, rates=(1.0, 0.3), rates_of_fewer=((8, (0.5, 0.5)),), rates_with_adam=(0.7, 0.5)
    ),
    "elastic": OuterOptions(("elastic_rate",), pushes_parameters=True, weighs_groups=False),
    "sum": OuterOptions(weighs_groups=False, allows_adaptive=False),
}
"""Outer optimizers by name. `tfdist.strategies.hogwild.synchronization.outer_optimizers` implements each of them."""
