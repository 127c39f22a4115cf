"""Simulates a training event by event: machines with cores and links, and what every worker does one after the other.

Machines have cores that their tasks share equally, and a link in each direction. Messages flow through both links at once. The
chief prepares calls one after the other. The formulas of predict.py know none of this: the order of messages, rounds that end
without a slow worker, shards whose replies begin while others are pushed, a worker beside the chief whose batches need no
link, and the end of an epoch.
"""

import functools
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfdist.planner.costs import HOP_SECONDS
from tfdist.planner.events import Clock, Cores, Links, Machine, Then, after_all
from tfdist.planner.ways import Way

CYCLES = 9
"""Steps or periods that the slowest worker makes. The first third of the time does not count."""

BUNDLES = 8
"""More ps than these are simulated as so many that have the links and cores of several."""

MANY, FEW_PARTS = 8, 4
"""With more workers, whose messages mix anyway, the largest message has 4 parts."""

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
    """What a simulation has found.

    Attributes:
        speed: examples per second of all workers.
        busiest: name of the busiest resource.
        busy: part of the time for which that is busy.
    """

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
    bounds = [alone + (len(sent) - alone) * number // count for number in range(count + 1)] if sent else [0]
    pairs = [(0, alone)] * alone + list(itertools.pairwise(bounds))
    return [end - begin for begin, end in pairs], [sum(sent[begin:end]) for begin, end in pairs]


class Simulation:
    """One training.

    Args:
        way: how to train.
        network: on what.
        seed: of the random times.
        most: most workers that are simulated.
    """

    PARTS = 16
    """Parts of the largest message, which take turns with those of others."""

    def __init__(self, way: Way, network: Network, seed: int = 0, most: int = MOST_WORKERS) -> None:
        option, clock = way.option, Clock()
        self.way, self.clock, self._random = way, clock, random.Random(seed)
        self.count = min(option.workers, most)
        self.each = option.workers / self.count  # So many workers does each stand for.
        ps = min(self.count, max(1, round(option.ps / self.each))) if self.each > 1 else option.ps
        counts, self.sent = _bundled(way.sent, ps if option.colocated or way.is_one_machine else min(ps, BUNDLES))
        parts = self.PARTS if self.count <= MANY else FEW_PARTS
        self.links = Links(clock, network.rate, network.delay, max([way.batches, *self.sent]) / parts)
        self.crowds = [self.each / count for count in counts]
        physical = [Cores(clock, f"core {number}", 1) for number in range(network.shared_by or 0)]

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
        self._python = Cores(clock, "chief processor", 1)
        self._prepares: deque[tuple[float, Then]] = deque()
        self.ends: list[list[tuple[float, int]]] = [[] for _ in range(self.count)]
        self._slow = set(range(self.count))  # Those that have not made `CYCLES`.
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
        self.links.send(self.chief, self.workers[worker], size, then, up=self.each)

    def push(self, worker: int, number: int, size: float, then: Then) -> None:
        """Sends bytes of a worker to a ps."""
        self.links.send(self.workers[worker], self.servers[number], size, then, down=self.crowds[number])

    def reply(self, number: int, worker: int, size: float, then: Then) -> None:
        """Sends bytes of a ps to a worker."""
        self.links.send(self.servers[number], self.workers[worker], size, then, up=self.crowds[number])

    def ended(self, worker: int, steps: int) -> None:
        """Notes that a worker has made steps."""
        self.ends[worker].append((self.clock.now, steps))
        if len(self.ends[worker]) >= CYCLES:
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


class ParameterServer(Simulation):
    """`parameter_server`: every step pulls from every ps, computes, and pushes to every ps."""

    PARTS = 8  # With many, simulated workers stay in step and send at the same time, which real ones do not for long.

    def step(self, worker: int) -> None:
        """Makes a step, and then the next one."""
        way, machine = self.way, self.workers[worker]
        several = way.option.workers > 1  # Else the chief waits for the result before it goes on.
        ready = after_all(2, lambda: self._next(worker))
        if several:
            self.prepare(way.chief, ready)

        def end() -> None:
            if not several:
                self.prepare(way.chief, ready)
            ready()

        done = after_all(len(self.sent), end)

        def send(number: int, size: float) -> None:
            self.push(worker, number, size, lambda: self.serve(self.servers[number], way.server / 2, done))

        def computed() -> None:
            for number, size in enumerate(self.sent):
                send(number, size)

        arrived = after_all(len(self.sent), lambda: machine.cores.run(self.compute(1) + way.worker, computed))

        def request(number: int, size: float) -> None:
            self.serve(self.servers[number], way.server / 2, lambda: self.reply(number, worker, size, arrived))

        def pull() -> None:
            for number, size in enumerate(self.sent):
                request(number, size)

        self.send_batches(worker, way.batches, pull)

    def _next(self, worker: int) -> None:
        number = len(self.ends[worker])
        self.ended(worker, 1)
        if self.way.is_synchronous:
            self.together(number, lambda: self.step(worker))
        else:
            self.step(worker)


def ring(way: Way, network: Network, seed: int = 0) -> Simulated:
    """`multi_worker_mirrored` by its closed formula: the slowest worker, then 2 (n - 1) hops of a ring."""
    workers, generator = way.option.workers, random.Random(seed)
    draw = (lambda: generator.gammavariate(way.spread**-2, way.spread**2)) if way.spread else lambda: 1.0
    slowest = sum(max(draw() for _ in range(workers)) for _ in range(CYCLES)) / CYCLES
    share = max(1.0, workers / network.cores) if way.is_one_machine else 1.0
    computed = share * (way.compute * (1.0 if way.is_one_machine else slowest) + way.worker)
    hops = 2 * (workers - 1)
    wire = 0.0 if way.is_one_machine else hops * (sum(way.sent) / workers / network.rate + network.delay)
    seconds = computed + wire + hops * HOP_SECONDS
    busiest = max((wire / seconds, "worker link"), (computed / seconds, "worker processor"))
    return Simulated(way.examples / seconds, busiest[1], busiest[0])
