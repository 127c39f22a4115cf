"""Simulates a training event by event: machines with cores and links, and what every worker does one after the other.

Machines have cores, and a link in each direction, which all who use them at a time share equally. Messages flow through both
links at once. The chief prepares calls one after the other. What workers do is in simulated_steps.py (`parameter_server`),
simulated_ring.py (`multi_worker_mirrored`) and simulated_periods.py (`hogwild`).
"""

import functools
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfdist.planner.events import Clock, Links, Machine, Shared, Then, after_all
from tfdist.planner.ways import Way

CYCLES = 9
"""Steps or periods that the slowest worker makes. The first third of the time does not count."""

BUNDLES = 8
"""More ps than these are simulated as so many that have the links and cores of several."""

MOST_WORKERS = 24
"""Of more workers, and of their ps, an equal part is simulated, each for several: what they share is as busy as with all."""


@dataclass(frozen=True)
class Network:
    """What all machines have.

    Attributes:
        rate: of a link, bytes per second and direction.
        delay: of a message, seconds.
        cores: cores of a machine.
        server_cores: cores of a machine with nothing but a ps; None for as many.
        shared_by: if given, machine k is on core k modulo this number, as the nodes of benchmarks/networks.py are: first the
            machines of workers, then those of ps.
    """

    rate: float
    delay: float
    cores: float
    server_cores: int | None = None
    shared_by: int | None = None


@dataclass(frozen=True)
class Simulated:
    """Examples per second of all workers, and the busiest resource with the part of the time for which it is busy."""

    speed: float
    busiest: str
    busy: float


def _bundled(sent: Sequence[float], most: int) -> tuple[list[int], list[float]]:
    """Returns how many ps each of at most `most` bundles has, and the bytes that a worker sends to each bundle.

    A ps that holds more than the others is on its own.
    """
    if most < len(sent):
        sent = sorted(sent, reverse=True)
    alone = 1 if 1 < most < len(sent) and sent[0] > 1.01 * sent[1] else 0
    count = min(most, len(sent)) - alone
    bounds = [alone + (len(sent) - alone) * number // count for number in range(count + 1)] if count else [0]
    pairs = [(0, alone)] * alone + list(itertools.pairwise(bounds))
    return [end - begin for begin, end in pairs], [sum(sent[begin:end]) for begin, end in pairs]


class Simulation:
    """One training, with `most` workers at most. `seed` is that of the random times."""

    def __init__(self, way: Way, network: Network, seed: int = 0, most: int = MOST_WORKERS) -> None:
        option, clock = way.option, Clock()
        self.way, self.network, self.clock, self._random = way, network, clock, random.Random(seed)
        self.count = min(option.workers, most)
        self.each = option.workers / self.count  # So many workers does each stand for.
        ps = min(self.count, max(1, round(option.ps / self.each))) if self.each > 1 else option.ps
        counts, self.sent = _bundled(
            way.sent if option.ps else (), ps if option.colocated or way.is_one_machine else min(ps, BUNDLES)
        )
        self.links = Links(clock, network.rate, network.delay)
        self.crowds = [self.each / count for count in counts]
        physical = [Shared(clock, f"core {number}", 1) for number in range(network.shared_by or 0)]

        def machine(name: str, place: int, cores: float = network.cores) -> Machine:
            return Machine(clock, name, physical[place % len(physical)] if physical else cores)

        server_cores = network.server_cores or network.cores

        self.workers = [machine(f"worker {number}", number) for number in range(self.count)]
        self.servers = [machine(f"ps {number}", self.count + number, server_cores) for number in range(len(counts))]
        if option.colocated:
            self.servers[: self.count] = self.workers[: len(counts)]
        self.chief = machine("the chief", 0) if option.chief_apart else self.workers[0]
        if way.is_one_machine:
            self.chief = machine("all tasks", 0)
            self.workers, self.servers = [self.chief] * self.count, [self.chief] * len(counts)
        self._python = Shared(clock, "chief processor", 1)
        self._prepares: deque[tuple[float, Then]] = deque()
        self.ends: list[list[tuple[float, int]]] = [[] for _ in range(self.count)]
        self.cycles = CYCLES
        self._slow = set(range(self.count))  # Those that have not made `cycles`.
        self.finished_at: float | None = None
        self.waiting: dict[int, list[Then]] = {}

    # Parts of what all strategies do.

    def compute(self, steps: int) -> float:
        """Returns the processor seconds of steps."""
        mean, spread = self.way.compute, self.way.spread
        return mean * self._random.gammavariate(steps * spread**-2, spread**2) if spread else mean * steps

    def prepare(self, seconds: float, then: Then) -> None:
        """Lets the chief's Python work for some seconds. It does one thing after the other."""
        self._prepares.append((self.each * seconds, then))
        if len(self._prepares) == 1:
            self._prepare_next()

    def _prepare_next(self) -> None:
        seconds, then = self._prepares[0]

        def done() -> None:
            self._prepares.popleft()
            if self._prepares:
                self._prepare_next()
            then()

        waits = after_all(2, done)
        self._python.run(seconds, waits)
        self.chief.cores.run(seconds, waits)

    def serve(self, server: Machine, seconds: float, then: Then) -> None:
        """Lets a ps work for a message of a worker."""
        server.cores.run(self.each * seconds, then)

    def send_batches(self, worker: int, size: float, then: Then) -> None:
        """Sends batches from the chief."""
        machine = self.workers[worker]
        self.links.tell(self.chief, machine, lambda: self.links.send(self.chief, machine, size, then, up=self.each))

    def push(self, worker: int, number: int, size: float, then: Then) -> None:
        """Sends bytes of a worker to a ps."""
        self.links.send(self.workers[worker], self.servers[number], size, then, down=self.crowds[number])

    def reply(self, number: int, worker: int, size: float, then: Then) -> None:
        """Sends bytes of a ps to a worker."""
        self.links.send(self.servers[number], self.workers[worker], size, then, up=self.crowds[number])

    def ended(self, worker: int, steps: int) -> None:
        """Notes that a worker has made steps."""
        self.ends[worker].append((self.clock.now, steps))
        if len(self.ends[worker]) >= self.cycles:
            self._slow.discard(worker)

    def together(self, number: int, then: Then) -> None:
        """Goes on when all workers have come so far."""
        waiting = self.waiting.setdefault(number, [])
        waiting.append(then)
        if len(waiting) == self.count:
            for each in self.waiting.pop(number):
                self.clock.after(0.0, each)

    def run(self, begin: Callable[[int], None]) -> Simulated:
        """Lets all workers begin, and returns how fast they are when all have made some cycles."""
        for worker in range(self.count):
            self.clock.after(0.0, functools.partial(begin, worker))
        while self._slow and self.finished_at is None and self.clock.step():
            pass
        # Each worker's own rate, without the beginning, when none waits for others.
        speed = 0.0
        for ends in self.ends:
            counted = [each for each in ends if each[0] >= self.clock.now / 3]
            counted = counted if len(counted) > 2 else ends
            if len(counted) > 1:
                speed += sum(steps for _, steps in counted[1:]) / (counted[-1][0] - counted[0][0])
        return self.result(speed)

    def result(self, steps_per_second: float) -> Simulated:
        """Returns what was found, with the busiest resource."""
        machines = {id(each): each for each in (*self.workers, *self.servers, self.chief)}.values()
        served = {id(each): each for machine in machines for each in (machine.cores, machine.up, machine.down)}
        used = [(each.used(), each.name) for each in (*served.values(), self._python)]
        busy, name = max(used)
        return Simulated(self.each * steps_per_second * self.way.examples, name, min(1.0, busy / self.clock.now))
