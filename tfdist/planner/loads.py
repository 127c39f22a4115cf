"""How long each resource of a cluster is busy while every worker makes one cycle: its processor, links and cores."""

from collections.abc import Iterable
from dataclasses import dataclass

from tfdist.planner.option import Hardware, Option
from tfdist.planner.ways import Way


@dataclass(frozen=True)
class Load:
    """How long a resource is busy.

    Attributes:
        seconds: for a cycle of every worker.
        resource: what it is: `link of ps 0`.
        kind: `sent` or `received` for the directions of a link, `processor`, or `chief`.
        is_shared: whether several workers use it.
    """

    seconds: float
    resource: str
    kind: str
    is_shared: bool = True


@dataclass(frozen=True)
class _Machine:
    """The tasks of a machine: the number of its worker and ps, or None, and whether it has the chief."""

    worker: int | None
    ps: int | None
    chief: bool

    @property
    def tasks(self) -> str:
        names = [f"{job} {number}" for job, number in (("worker", self.worker), ("ps", self.ps)) if number is not None]
        names += ["the chief"] if self.chief else []
        return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def machines(option: Option) -> list[_Machine]:
    """Returns the machines that differ: of those with the same tasks, the first."""
    served = option.ps > 0
    chief_on_first = served and not option.chief_apart
    placed = []
    numbers = {0, 1, option.ps - 1, option.ps, option.workers - 1} if option.colocated else {0, 1}
    for number in sorted(number for number in numbers if 0 <= number < option.workers):
        ps = number if option.colocated and number < option.ps else None
        placed.append(_Machine(number, ps, chief_on_first and number == 0))
    if not option.colocated:
        placed += [_Machine(None, number, False) for number in range(min(option.ps, 2))]
    if served and option.chief_apart:
        placed.append(_Machine(None, None, True))
    return placed


def loads(way: Way, hardware: Hardware) -> list[Load]:
    """Returns how long each resource is busy while each worker makes one cycle: a step, or a period of `hogwild`."""
    option = way.option
    found = [Load(option.workers * way.chief, "chief processor", "chief")] if way.chief else []
    # The ps with the most bytes is the one whose link and processor bind; it stands for all.
    largest = max(way.sent, default=0.0)
    for machine in machines(option):
        found += _of_machine(machine, way, hardware, largest)
    return found


def busiest(all_loads: Iterable[Load]) -> list[Load]:
    """Returns the busiest load of each kind that workers share, the busiest first."""
    by_kind: dict[str, Load] = {}
    for load in sorted(all_loads, key=lambda load: load.seconds):
        if load.is_shared:
            by_kind[load.kind] = load
    return sorted(by_kind.values(), key=lambda load: -load.seconds)


def _of_machine(machine: _Machine, way: Way, hardware: Hardware, largest: float) -> Iterable[Load]:
    workers = way.option.workers
    processor = sent = received = 0.0
    if machine.worker is not None:
        processor += way.processor
        own = largest if machine.ps is not None else 0.0
        sent += sum(way.sent) - own
        received += sum(way.sent) - own + (0 if machine.chief else way.batches)
    if machine.ps is not None:
        processor += workers * way.server
        remote = (workers - (machine.worker is not None)) * largest
        sent += remote
        received += remote
    if machine.chief:
        processor += workers * way.chief
        sent += (workers - (machine.worker is not None)) * way.batches
    alone = sum((machine.worker is not None, machine.ps is not None, machine.chief)) == 1
    serves_only = machine.ps is not None and alone
    cores = (hardware.server_cores if serves_only else None) or hardware.cores
    name = f"processor of {machine.tasks}" if alone else f"cores that {machine.tasks} share"
    is_shared = machine.ps is not None or machine.chief
    yield Load(processor / cores, name, "processor", is_shared)
    yield Load(sent / hardware.link, f"link of {machine.tasks}", "sent", is_shared)
    yield Load(received / hardware.link, f"link of {machine.tasks}", "received", is_shared)
