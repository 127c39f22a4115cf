"""Simulates `parameter_server`: every step of a worker pulls, computes and pushes.

Two workers that begin together pull together, each at half of the rate, and push together, and so both directions of a link are
idle for half of the time. Who is ahead by a second stays ahead by a second: who is behind has the link for itself at the end.
So the order in which they began lasts, and the speed with it: between half of what the link allows and all of it. The mean of
several beginnings is predicted.
"""

import functools
import random
from collections.abc import Sequence

from tfdist.planner.events import after_all
from tfdist.planner.simulated import MOST_WORKERS, Network, Simulated, Simulation
from tfdist.planner.ways import Way

BEGINNINGS = 16
"""So many beginnings are simulated, divided by the workers. Of many workers always some pull and others push."""


class ParameterServer(Simulation):
    """`parameter_server`: every step pulls from every ps, computes, and pushes to every ps."""

    def begin(self, worker: int, part: float) -> None:
        """Makes the first step.

        Args:
            worker: the worker.
            part: after this part of the time that a step takes if all of them wait for each other.
        """
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


def simulate_steps(way: Way, network: Network, seed: int = 0, most: int = MOST_WORKERS) -> Simulated:
    """Returns what the simulation finds, in the mean of several beginnings; for the arguments see `simulate`."""
    count = beginnings(way)
    generator = random.Random(seed)
    # Of each worker, one beginning in each part of a step (a Latin hypercube).
    places = [generator.sample(range(count), count) for _ in range(min(most, way.option.workers))]
    found = []
    for number in range(count):
        parts = [0.0 if way.is_synchronous else (each[number] + generator.random()) / count for each in places]
        found.append(_run(ParameterServer(way, network, seed + number, most), parts))
    mean = sum(each.speed for each in found) / count
    nearest = min(found, key=lambda each: abs(each.speed - mean))
    return Simulated(mean, nearest.busiest, nearest.busy)


def _run(served: ParameterServer, parts: Sequence[float]) -> Simulated:
    return served.run(lambda worker: served.begin(worker, parts[worker]))


def beginnings(way: Way) -> int:
    """Returns how many beginnings are simulated."""
    workers = way.option.workers
    return 1 if way.is_synchronous or workers == 1 else max(1, BEGINNINGS // workers)
