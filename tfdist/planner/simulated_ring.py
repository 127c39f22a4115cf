"""Simulates `multi_worker_mirrored`: each step computes, and then a ring of workers sums the gradients.

A ring of n workers sums them in 2 (n - 1) stages. In each, every worker sends an n-th of them to the next one. The strategy has
several rings at a time, one for each bucket, but what they send shares one connection and arrives together
(benchmarks/multi_worker_mirrored.md). So they count as one ring.
"""

from dataclasses import dataclass

from tfdist.planner.costs import HOP_SECONDS
from tfdist.planner.simulated import Network, Simulated, Simulation
from tfdist.planner.ways import Way

MOST_IN_RING = 4
"""Of longer rings of machines with their own cores, a ring of so many is simulated, of which each stage stands for several."""


@dataclass
class _Sum:
    """How far the sum of a step is on a worker: whether its own gradients are there, and its stages."""

    is_ready: bool = False
    sent: int = 0
    received: int = 0


class Ring(Simulation):
    """`multi_worker_mirrored`."""

    def __init__(self, way: Way, network: Network) -> None:
        is_apart = not way.is_one_machine and network.shared_by is None  # Else all of them need the same cores.
        super().__init__(way, network, most=MOST_IN_RING if is_apart else way.option.workers)
        self._stages = 2 * (self.count - 1)
        self._longer = (way.option.workers - 1) / max(1, self.count - 1)  # So many stages does each stand for.
        self._sums: dict[tuple[int, int], _Sum] = {}

    def compute(self, steps: int) -> float:
        """Returns the processor seconds of steps of the slowest of the workers for which one stands."""
        return max(super(Ring, self).compute(steps) for _ in range(max(1, round(self.each))))

    def step(self, worker: int) -> None:
        """Makes a step, and then the next one."""
        number = len(self.ends[worker])

        def computed() -> None:
            self._sum(number, worker).is_ready = True
            self._go_on(number, worker)

        self.workers[worker].cores.run(self.compute(1), computed)

    def _sum(self, number: int, worker: int) -> _Sum:
        return self._sums.setdefault((number, worker), _Sum())

    def _go_on(self, number: int, worker: int) -> None:
        """Sends the stages that may be sent: the first one, and each whose predecessor has come in."""
        mine = self._sum(number, worker)
        while mine.is_ready and mine.sent < min(mine.received + 1, self._stages):
            mine.sent += 1
            self._send(number, worker)
        if mine.is_ready and mine.received == self._stages:
            del self._sums[number, worker]
            self.ended(worker, 1)
            self.step(worker)

    def _send(self, number: int, worker: int) -> None:
        way, target = self.way, (worker + 1) % self.count
        size = self._longer * sum(way.sent) / way.option.workers
        # The message has the delay of one stage; one machine has none.
        later = self._longer * (HOP_SECONDS + self.network.delay) - self.network.delay

        def added() -> None:
            self._sum(number, target).received += 1
            self._go_on(number, target)

        def arrived() -> None:
            self.workers[target].cores.run(way.worker / self._stages, added)

        self.links.send(self.workers[worker], self.workers[target], size, lambda: self.clock.after(later, arrived))

    def result(self, steps_per_second: float) -> Simulated:
        """See `Simulation.result`; all workers make each step together."""
        return super().result(steps_per_second / self.way.option.workers)


def simulate_ring(way: Way, network: Network) -> Simulated:
    """Returns what the simulation finds; for the arguments see `simulate`."""
    found = Ring(way, network)
    return found.run(found.step)
