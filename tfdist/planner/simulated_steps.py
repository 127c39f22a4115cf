"""Simulates `parameter_server`: every step of a worker pulls, computes and pushes.

The order in which workers begin their steps decides how fast they are (see `tfdist.step_order`). The strategy tries orders and
keeps the fastest, and so does the simulation. Of each it takes the mean of several beginnings.
"""

import functools
import random
from collections import deque
from collections.abc import Callable, Sequence

from tfdist import step_order
from tfdist.planner.events import after_all
from tfdist.planner.simulated import MOST_WORKERS, Network, Simulated, Simulation
from tfdist.planner.ways import Way
from tfdist.step_order import RECENT, Running, StepOrder, best, pause

BEGINNINGS = 16
"""So many beginnings are simulated, divided by the workers. Of many workers always some pull and others push."""

ORDERED = 3
"""An order is reached after some steps: it is simulated for this many times as long."""

NOTHING = 1e-9
"""Nobody waits for less, seconds."""


class ParameterServer(Simulation):
    """`parameter_server`: every step pulls from every ps, computes, and pushes to every ps."""

    def begin(self, worker: int, part: float) -> None:
        """Makes the first step, after this part of the time that a step takes if all of them wait for each other."""
        way, workers = self.way, self.way.option.workers
        alone = (2 * sum(way.sent) + way.batches) / self.network.rate + way.compute + way.worker + way.server + way.chief
        busiest = max(max(way.sent, default=0.0) / self.network.rate, way.server / self.network.cores, way.chief)
        self.clock.after(part * (alone + (workers - 1) * busiest), functools.partial(self.step, worker))

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

        def fetch() -> None:
            self.links.tell(self.chief, machine, lambda: self.links.tell(machine, self.chief, end))

        done = after_all(len(self.sent), lambda: self.links.tell(machine, self.chief, fetch))

        def send(number: int, size: float) -> None:
            server = self.servers[number]
            applied = lambda: self.links.tell(server, machine, done)  # noqa: E731
            self.push(worker, number, size, lambda: self.serve(server, way.server / 2, applied))

        def computed() -> None:
            for number, size in enumerate(self.sent):
                send(number, size)

        arrived = after_all(len(self.sent), lambda: machine.cores.run(self.compute(1) + way.worker, computed))

        def request(number: int, size: float) -> None:
            server = self.servers[number]
            read = lambda: self.reply(number, worker, size, arrived)  # noqa: E731
            self.links.tell(machine, server, lambda: self.serve(server, way.server / 2, read))

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


class Ordered(ParameterServer):
    """`parameter_server` with workers that wait until they may begin a step."""

    def __init__(self, order: StepOrder, way: Way, network: Network, seed: int, most: int) -> None:
        super().__init__(way, network, seed, most)
        self.cycles *= ORDERED
        self._order = order
        self._running: dict[int, float] = {}  # When the step of a worker began.
        self._lasted: dict[int, deque[float]] = {number: deque(maxlen=RECENT) for number in range(self.count)}
        self._latest: dict[int, float] = {}  # When the wait of a worker ends.

    def step(self, worker: int) -> None:
        """Waits, and makes a step."""
        now = self.clock.now
        if worker in self._running:
            self._lasted[worker].append(now - self._running.pop(worker))
        self._latest[worker] = now + max((each.step for each in self._others()), default=0.0)
        self._try_all()

    def _others(self) -> list[Running]:
        """Returns the steps that are being made."""
        lasted = ((begun, self._lasted[worker]) for worker, begun in self._running.items())
        return [Running(begun, sum(seconds) / len(seconds)) for begun, seconds in lasted if seconds]

    def _try_all(self) -> None:
        for worker in list(self._latest):
            self._try(worker)

    def _try(self, worker: int) -> None:
        if worker not in self._latest:
            return
        now = self.clock.now
        wait = min(pause(self._order, now, self._others()), self._latest[worker] - now)
        if wait > NOTHING:
            self.clock.after(wait, lambda: self._try(worker))
            return
        del self._latest[worker]
        self._running[worker] = now
        super().step(worker)
        self._try_all()


def simulate_steps(way: Way, network: Network, most: int) -> Simulated:
    """Returns what the simulation finds in the order that the strategy keeps; for the arguments see `simulate`."""
    free = without_order(way, network, most)
    if way.is_synchronous or way.is_one_machine or not 1 < way.option.workers <= step_order.MOST_WORKERS:
        return free
    orders = {StepOrder.FREE: free}
    for order in (StepOrder.TOGETHER, StepOrder.TURNS):
        orders[order] = _mean(way, most, functools.partial(Ordered, order, way, network))
    return orders[best({order: each.speed for order, each in orders.items()})]


def without_order(way: Way, network: Network, most: int = MOST_WORKERS) -> Simulated:
    """Returns what the simulation finds if workers begin their steps as soon as they are free."""
    return _mean(way, most, functools.partial(ParameterServer, way, network))


def _mean(way: Way, most: int, training: Callable[[int, int], ParameterServer]) -> Simulated:
    """Returns the mean of several beginnings. `training` makes a simulation of a seed and `most` workers."""
    count = beginnings(way)
    generator = random.Random(0)
    # Of each worker, one beginning in each part of a step (a Latin hypercube).
    places = [generator.sample(range(count), count) for _ in range(min(most, way.option.workers))]
    runs = []
    for number in range(count):
        parts = [0.0 if way.is_synchronous else (each[number] + generator.random()) / count for each in places]
        runs.append(_run(training(number, most), parts))
    mean = sum(each.speed for each in runs) / count
    nearest = min(runs, key=lambda each: abs(each.speed - mean))
    return Simulated(mean, nearest.busiest, nearest.busy)


def _run(served: ParameterServer, parts: Sequence[float]) -> Simulated:
    return served.run(lambda worker: served.begin(worker, parts[worker]))


def beginnings(way: Way) -> int:
    """Returns how many beginnings are simulated."""
    workers = way.option.workers
    return 1 if way.is_synchronous or workers == 1 else max(1, BEGINNINGS // workers)
