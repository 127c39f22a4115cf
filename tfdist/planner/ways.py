"""`Way`: what the simulator needs to know about one way to train, with the costs that the formulas use."""

from dataclasses import dataclass, replace
from typing import Any

from tfdist.planner.costs import COMPRESSED, Costs
from tfdist.planner.option import Option
from tfdist.planner.placement import evenly, shards, whole_and_split

DELAY_PART, LONGEST_DELAY = 4, 4
"""Without a delay of the user's, hogwild measures one: at most 4, and at most a quarter of the updates between two pushes."""


@dataclass(frozen=True)
class Way:
    """One way to train, and what it costs. Times are processor seconds.

    Attributes:
        option: strategy and numbers of tasks.
        compute: of a step.
        worker: of a worker for a synchronization (parameter_server: of a step; multi_worker_mirrored: for the sum).
        server: of each ps for it.
        chief: of the chief for it.
        sent: bytes that a worker sends to each ps in it, and as many that it receives; multi_worker_mirrored:
            `Costs.summed_bytes`.
        batches: bytes that the chief sends for it.
        examples: of a step.
        shards: parts of the parameters of a ps, which travel one after the other and have their own rounds.
        epoch: steps of an epoch, at whose end all workers wait for each other; None for no end.
        spread: standard deviation of the time of a step, in units of its mean.
        is_synchronous: whether the workers of parameter_server wait for each other after each step.
        rounds: whether hogwild's replies wait for the pushes of all workers.
        is_one_machine: whether all tasks share one machine.
        assumed: what was not measured, in words.
    """

    option: Option
    compute: float
    worker: float = 0.0
    server: float = 0.0
    chief: float = 0.0
    sent: tuple[float, ...] = ()
    batches: float = 0.0
    examples: float = 1.0
    shards: int = 1
    epoch: int | None = None
    spread: float = 0.0
    is_synchronous: bool = False
    rounds: bool = True
    is_one_machine: bool = False
    assumed: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Steps of a cycle: with hogwild those of a period, else one."""
        return self.option.period if self.option.strategy == "hogwild" else 1

    @property
    def processor(self) -> float:
        """Processor seconds of a worker for a cycle."""
        return self.steps * self.compute + self.worker


def way_of(costs: Costs, option: Option, **changes: Any) -> Way:
    """Returns a way to train with the costs that the formulas use, and some attributes that differ."""
    measured = costs.measurement
    size, examples, batches = measured.model_bytes, measured.batch, measured.batch_bytes
    if option.strategy == "multi_worker_mirrored":
        computed, summed = costs.all_reduce(option.workers)
        examples *= option.workers if costs.batch_grows else 1
        assumed = () if measured.run(option.strategy) else (f"{option.strategy} was not measured",)
        sent: tuple[float, ...] = (costs.summed_bytes(option.workers),)
        way = Way(option, computed, summed, sent=sent, examples=examples, assumed=assumed)
    elif option.strategy == "parameter_server":
        placed = whole_and_split(measured.variables, option.ps, costs.table_part)
        cost = costs.served(option.ps, max(placed) / sum(placed))
        sent = tuple(each * COMPRESSED[option.compression] for each in placed)
        way = Way(option, costs.compute, cost.worker, cost.server, cost.chief, sent, batches, examples, assumed=cost.assumed)
    else:
        cost = costs.synchronized(option.period, option.ps, option.fragments)
        sent = tuple(each * COMPRESSED[option.compression] for each in evenly(size, option.ps))
        batches *= option.period
        way = Way(option, costs.compute, cost.worker, cost.server, cost.chief, sent, batches, examples, assumed=cost.assumed)
        way = replace(way, shards=shards(size // option.fragments, option.ps), epoch=measured.epoch)
    return replace(way, **changes)
