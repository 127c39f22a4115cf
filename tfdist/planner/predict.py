"""Predicts examples per second of an option, and names the resource that binds.

A cycle of a worker is a step, or with `hogwild` a period of steps and its synchronization. `predict` is a formula that takes
microseconds, to compare hundreds of options:

    T = (L^g + X^g)^(1/g)

L is how long a cycle takes if nothing is shared: what the worker does one after the other. X is how long the busiest shared
resource (a link, the processor of a ps, of the chief, the cores of a machine) is busy while every worker makes one cycle. T is
close to the larger of both unless they are about equal. The form is that of Pollux (OSDI 2021). With `parameter_server` workers
do not wait for each other, but queue for each resource (queues.py); with `multi_worker_mirrored` nothing is shared.

`simulated` then simulates those that are shown (simulated.py), and its prediction counts.
"""

from dataclasses import dataclass, replace

from tfdist.planner.costs import HOP_SECONDS, Costs
from tfdist.planner.loads import Load, busiest, loads
from tfdist.planner.option import Hardware, Option
from tfdist.planner.queues import cycle as queued
from tfdist.planner.simulated import MOST_WORKERS, Network, Simulated
from tfdist.planner.simulated_periods import simulate_periods
from tfdist.planner.simulated_ring import simulate_ring
from tfdist.planner.simulated_steps import simulate_steps
from tfdist.planner.ways import DELAY_PART, LONGEST_DELAY, Way, way_of

G = 5.0
"""The exponent g. Chosen on nine float32 cells of an older run of benchmarks/hogwild.py, never on those of planner.md."""

MESSAGE_SECONDS = 1e-4
"""How long a message takes beside its bytes."""

BINDS = 0.6
"""A shared resource binds if it is busy for this part of the time; otherwise the worker's own processor or link does."""


@dataclass(frozen=True)
class Prediction:
    """How fast an option trains.

    Attributes:
        option: the option.
        examples_per_second: of all workers.
        binding: the resource that binds: what has to become faster to train faster.
        busy: the part of the time for which each shared resource is busy, by name, the busiest first.
        assumed: what was not measured, in words.
        is_simulated: whether it was simulated event by event, and not by a formula.
    """

    option: Option
    examples_per_second: float
    binding: str
    busy: tuple[tuple[str, float], ...]
    assumed: tuple[str, ...] = ()
    is_simulated: bool = False

    @property
    def sentence(self) -> str:
        """What binds, as a sentence: `link of ps 0 binds`."""
        return f"{self.binding} bind{'' if self.binding.startswith('cores ') else 's'}"


def predict(costs: Costs, hardware: Hardware, option: Option) -> Prediction:
    """Returns the prediction of a formula for an option on machines that are all equal. It takes microseconds."""
    return _PREDICTORS[option.strategy](costs, hardware, option)


def simulated(costs: Costs, hardware: Hardware, option: Option, shared_by: int | None = None) -> Prediction:
    """Returns the prediction of the simulator (simulated.py), for machines that are all equal. It takes some 10 ms."""
    formula = predict(costs, hardware, option)
    if option.strategy in ("default", "mirrored"):
        return formula
    way = way_of(costs, option)
    way = replace(way, compute=costs.wall(way.compute, max(1, hardware.cores)))  # The simulated cores know a quota.
    network = Network(hardware.link, MESSAGE_SECONDS, hardware.cores, hardware.server_cores, shared_by)
    speed = simulate(way, network).speed
    factor = speed / formula.examples_per_second
    busy = tuple((name, min(1.0, factor * part)) for name, part in formula.busy)
    together = 1 if option.strategy == "multi_worker_mirrored" else option.workers
    steps = speed / together / way.examples
    compute = steps * (way.compute + way.worker / way.steps)
    compute /= min(1, hardware.cores)
    own = "worker processor" if compute >= 0.5 else "worker link"
    binding = busy[0][0] if busy and busy[0][1] >= BINDS else own
    return replace(formula, examples_per_second=speed, binding=binding, busy=busy, is_simulated=True)


def simulate(way: Way, network: Network, most: int = MOST_WORKERS) -> Simulated:
    """Returns what the simulation of a way to train finds. Of more workers than `most`, each simulated one stands for some."""
    if way.option.strategy == "multi_worker_mirrored":
        return simulate_ring(way, network)
    if way.option.strategy == "parameter_server":
        return simulate_steps(way, network, most)
    return simulate_periods(way, network, most)


def combined(alone: float, busiest: float) -> float:
    """Returns the time of a cycle, in seconds, that takes `alone` if nothing is shared, and for which the busiest shared
    resource is busy for `busiest`."""
    most = max(alone, busiest)
    return most * ((alone / most) ** G + (busiest / most) ** G) ** (1 / G) if most else 0.0


def _one_process(costs: Costs, hardware: Hardware, option: Option) -> Prediction:
    """One process, and `mirrored`: devices of one machine, each with its part of the batch."""
    processor = costs.measurement.single.worker / option.workers
    step = costs.wall(processor, hardware.cores)
    cores = option.workers * processor / hardware.cores
    time = combined(step, cores) if option.workers > 1 else step
    assumed = ("mirrored was not measured",) if option.workers > 1 else ()
    return Prediction(
        option, costs.measurement.batch / time, "worker processor", (("worker processor", cores / time),), assumed
    )


def _all_reduce(costs: Costs, hardware: Hardware, option: Option) -> Prediction:
    """`multi_worker_mirrored`: each step computes the worker's part of the batch, then sums all gradients in a ring."""
    workers, way = option.workers, way_of(costs, option)
    share = 2 * (workers - 1) / workers * way.sent[0]
    wire = share / hardware.link + 2 * (workers - 1) * HOP_SECONDS
    # One after the other, and no resource is shared: no queue forms.
    time = costs.wall(way.compute, hardware.cores) + way.worker / min(1, hardware.cores) + wire
    binding = "worker link" if wire > time - wire else "worker processor"
    processor = (way.compute + way.worker) / hardware.cores
    busy = (("worker link", share / hardware.link / time), ("worker processor", processor / time))
    return Prediction(option, way.examples / time, binding, _sorted(busy), way.assumed)


def _served(costs: Costs, hardware: Hardware, option: Option) -> Prediction:
    """`parameter_server`: a step reads the parameters, computes, and sends the gradients; workers do not wait for others."""
    way = way_of(costs, option)
    shared = loads(way, hardware)
    chief = way.chief if option.workers == 1 else 0.0  # Else the chief prepares the next step meanwhile.
    compute = costs.wall(way.compute, hardware.cores) + (way.worker + way.server + chief) / min(1, hardware.cores)
    wire = 2 * _remote(way) / hardware.link + _batches(way) / hardware.link
    queues = [load.seconds / option.workers for load in busiest(shared) if load.kind != "chief"]
    time = queued(option.workers, max(0.0, compute + wire - sum(queues)), queues)
    time = combined(time, option.workers * way.chief)
    return _prediction(way, time, shared, compute, wire)


def _local_steps(costs: Costs, hardware: Hardware, option: Option) -> Prediction:
    """`hogwild`: a period of steps on the worker's replica, and a synchronization of which the delay hides a part."""
    way = way_of(costs, option)
    step = costs.wall(way.compute, hardware.cores)
    between = max(1, option.period // option.fragments)
    delay = max(1, min(between // DELAY_PART, LONGEST_DELAY)) if option.delay is None else min(option.delay, between)
    # Rounds: all workers push at about the same time, and wait for the slowest answer.
    pushed = max(_remote(way), _crowd(way)) / hardware.link
    cores = hardware.cores if option.colocated else hardware.server_cores or hardware.cores
    synchronization = 2 * pushed + option.workers * way.server / cores
    wire = max(0.0, synchronization - delay * step * option.fragments)
    # And get their batches at the same time.
    wire += max(1, option.workers - (not option.chief_apart)) * _batches(way) / hardware.link
    chief = way.chief if option.workers == 1 else 0.0
    compute = option.period * step + (way.worker + chief) / min(1, hardware.cores)
    shared = loads(way, hardware)
    time = combined(compute + wire, max(load.seconds for load in shared))
    return _prediction(way, time, shared, compute, wire)


def _prediction(way: Way, time: float, shared: list[Load], computes: float, waits: float) -> Prediction:
    """Returns the prediction of a cycle that takes `time`, in which a worker computes, and waits for its own link."""
    binding = max(shared, key=lambda load: load.seconds)
    name = binding.resource
    if binding.seconds < BINDS * time:
        name = "worker processor" if computes >= waits else "worker link"
    largest = sorted(shared, key=lambda load: -load.seconds)[:4]
    busy = {load.resource: load.seconds / time for load in reversed(largest)}
    speed = way.option.workers * way.steps * way.examples / time
    return Prediction(way.option, speed, name, _sorted(tuple(busy.items())), way.assumed)


def _batches(way: Way) -> float:
    """Returns the bytes of its batches that a worker gets over a link before it can begin."""
    return way.batches if way.option.chief_apart or way.option.workers > 1 else 0.0


def _remote(way: Way) -> float:
    """Returns the bytes that a worker sends to ps on other machines."""
    option = way.option
    return sum(way.sent) - (max(way.sent) if option.colocated and option.ps >= option.workers else 0.0)


def _crowd(way: Way) -> float:
    """Returns the bytes that the ps with the most bytes receives from all workers on other machines."""
    return (way.option.workers - way.option.colocated) * max(way.sent)


def _sorted(busy: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(busy, key=lambda pair: pair[1], reverse=True))


_PREDICTORS = {
    "default": _one_process,
    "mirrored": _one_process,
    "multi_worker_mirrored": _all_reduce,
    "parameter_server": _served,
    "hogwild": _local_steps,
}
