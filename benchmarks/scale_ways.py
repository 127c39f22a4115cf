"""What scale_simulated.py simulates: ways to train, with the costs that the planner would use."""

from dataclasses import dataclass, replace

from tfdist.planner.costs import COMPRESSED, Costs
from tfdist.planner.option import Option
from tfdist.planner.placement import evenly, whole_and_split


@dataclass(frozen=True)
class Way:
    """One way to train, and what it costs. Times are processor seconds.

    Attributes:
        option: strategy and numbers of tasks.
        compute: of a step.
        worker: of a worker for an exchange (parameter_server: of a step; multi_worker_mirrored: for the sum).
        server: of each ps for it.
        chief: of the chief for it.
        sent: bytes that a worker sends to each ps in it, and as many that it receives; multi_worker_mirrored: of the model.
        batches: bytes that the chief sends for it.
        examples: of a step.
        spread: standard deviation of the time of a step, in units of its mean.
        is_synchronous: whether the workers of parameter_server wait for each other after each step.
        rounds: whether hogwild's replies wait for the pushes of all workers.
        is_one_machine: whether all tasks share one machine.
    """

    option: Option
    compute: float
    worker: float = 0.0
    server: float = 0.0
    chief: float = 0.0
    sent: tuple[float, ...] = ()
    batches: float = 0.0
    examples: float = 1.0
    spread: float = 0.0
    is_synchronous: bool = False
    rounds: bool = True
    is_one_machine: bool = False


def way_of(costs: Costs, option: Option, **changes: object) -> Way:
    """Returns a way to train with the costs that the planner would use."""
    measured = costs.measurement
    size, examples, batches = measured.model_bytes, measured.batch, measured.batch_bytes
    if option.strategy == "multi_worker_mirrored":
        computed, summed = costs.all_reduce(option.workers)
        examples *= option.workers if costs.batch_grows else 1
        found = Way(option, computed, summed, sent=(size,), examples=examples)
    elif option.strategy == "parameter_server":
        sent = whole_and_split(measured.variables, option.ps)
        cost = costs.served(option.ps, max(sent) / sum(sent))
        found = Way(option, costs.compute, cost.worker, cost.server, cost.chief, tuple(sent), batches, examples)
    else:
        cost, sent = costs.exchanged(option.period, option.ps, option.fragments), evenly(size, option.ps)
        bytes_ = tuple(each * COMPRESSED[option.compression] for each in sent)
        batches *= option.period
        found = Way(option, costs.compute, cost.worker, cost.server, cost.chief, bytes_, batches, examples)
    return replace(found, **changes)
