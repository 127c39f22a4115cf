"""Simulates `hogwild`: the calls of a worker group, its pushes and pulls, rounds, and the ends of epochs."""

import functools
import random
from collections import deque
from collections.abc import Callable

from tfdist.planner.costs import HOP_SECONDS
from tfdist.planner.events import Then, after_all
from tfdist.planner.simulated import BUNDLES, CYCLES, MOST_WORKERS, Network, Simulated, Simulation
from tfdist.planner.simulated_ring import simulate_ring
from tfdist.planner.simulated_rounds import Rounds
from tfdist.planner.simulated_steps import simulate_steps
from tfdist.planner.ways import DELAY_PART, LONGEST_DELAY, Way

LONG_EPOCH = 40
"""The end of an epoch is simulated if a worker makes fewer calls in it."""

PREPARED = 0.5
"""Part of the chief's work for a call that it does before the worker is free. The rest serializes and sends the batches."""

GRACE_PERIODS, GRACE_FIRST, GRACE_CALLS = 4.0, 5.0, 8
"""How long a group waits for the others of its round (strategies/hogwild/timing/grace.py)."""

IN_FLIGHT = 2
"""Calls of a worker group that the chief schedules ahead (strategies/coordinator/calls/executions.py)."""


class Hogwild(Simulation):
    """`hogwild`: calls of a period's steps on a replica; each pushes first, and pulls the replies `delay` updates later."""

    def __init__(self, way: Way, network: Network, most: int = MOST_WORKERS) -> None:
        super().__init__(way, network, most=most)
        option = way.option
        self._between = max(1, option.period // option.fragments)
        most = max(1, min(self._between // DELAY_PART, LONGEST_DELAY))
        self._delay = most if option.delay is None else min(option.delay, self._between)
        self._shards = way.shards if self.count <= 2 * BUNDLES else 1
        self._rounds: dict[tuple[int, int, int], Rounds] = {}
        self._turns = [0] * self.count
        self._since = [0] * self.count
        self._begun: list[tuple[float, float] | None] = [None] * self.count
        self._periods: list[deque[float]] = [deque(maxlen=GRACE_CALLS) for _ in range(self.count)]
        self._steps = None if way.epoch is None else max(1, round(way.epoch / self.each))
        calls = 0 if self._steps is None else -(-self._steps // self._per_call())
        self._epoch = self._steps if calls and calls < LONG_EPOCH * self.count and not way.is_one_machine else None
        self._boundaries: list[float] = []
        self._steps_done = 0
        self._begin_epoch()

    def _per_call(self) -> int:
        """Returns how many steps a call has at most (strategies/hogwild/timing/schedules.py)."""
        return self._between if self._steps is None else min(self._between, -(-self._steps // self.count))

    def _begin_epoch(self) -> None:
        self._left = self._epoch
        self._calls = 0 if self._epoch is None else -(-self._epoch // self._per_call())
        self._calls_begun, self._calls_done = [0] * self.count, 0
        self._idle: list[int] = []

    def begin(self, worker: int) -> None:
        """Makes the first call: at once, or without rounds, which would keep workers in step, some time later."""
        way, period, generator = self.way, self.way.option.period, random.Random(worker)
        alone = (2 * sum(way.sent) + way.batches) / self.network.rate + period * way.compute + way.worker + way.server
        self.clock.after(0.0 if way.rounds else generator.random() * alone, functools.partial(self.call, worker))

    def call(self, worker: int) -> None:
        """Makes the next call of a worker, and then the one after it; waits at the end of an epoch."""
        steps = self._between
        if self._left is not None:
            steps = min(self._per_call(), self._left)
            self._left -= steps
            if not steps:
                self._idle.append(worker)
                if len(self._idle) == self.count:
                    self._end_epoch()
                return
        self._calls_begun[worker] += 1
        now, begun = self.clock.now, self._begun[worker]
        if begun is not None:
            self._periods[worker].append((now - begun[0]) / begun[1])
        self._begun[worker] = now, steps / (self._between * self.way.option.fragments)
        synchronizes = 3 * steps >= 2 * self._between
        first = lambda: self._prepared(worker, steps, synchronizes)  # noqa: E731
        if not synchronizes and 2 * self._since[worker] + steps >= 2 * self._between:
            self._since[worker] = 0
            self._push(worker, first)
        else:
            first()

    def _end_epoch(self) -> None:
        self._boundaries.append(self.clock.now)
        if len(self._boundaries) > 1 and sum(map(len, self.ends)) >= CYCLES * self.count:  # Some may have no call.
            self.finished_at = self.clock.now
            return
        if len(self._boundaries) == 1:
            self._steps_done = 0
        self._begin_epoch()
        for worker in range(self.count):
            self.clock.after(0.0, functools.partial(self.call, worker))

    def run(self, begin: Callable[[int], None]) -> Simulated:
        """As `Simulation.run`; with epochs the speed is that of whole ones."""
        if self._epoch is not None:
            self._slow = {-1}  # Epochs end it.
        found = super().run(begin)
        if self.finished_at is None:
            return found
        return self.result(self._steps_done / (self._boundaries[-1] - self._boundaries[0]))

    def _prepared(self, worker: int, steps: int, synchronizes: bool) -> None:
        way, part = self.way, steps / self._between / self.way.option.fragments
        batches = way.batches * steps / way.option.period
        ahead = PREPARED if way.option.workers > 1 else 0.0

        def arrived() -> None:
            self._since[worker] = steps if synchronizes else self._since[worker] + steps
            self._train(worker, steps, synchronizes)

        def serialized() -> None:
            self.send_batches(worker, batches, arrived)
            if ahead:
                self.prepare(ahead * way.chief * part, lambda: None)

        self.prepare((1 - ahead) * way.chief * part, serialized)

    def _train(self, worker: int, steps: int, synchronizes: bool) -> None:
        cores, due, waits = self.workers[worker].cores, [synchronizes], [False]
        first = min(self._delay, steps) if synchronizes else steps

        def end() -> None:
            self.clock.after(HOP_SECONDS, lambda: self._ended(worker, steps))

        def rest() -> None:
            if steps > first:
                cores.run(self.compute(steps - first), end)
            else:
                end()

        def delayed() -> None:
            if due[0]:
                waits[0] = True
            else:
                rest()

        def replied() -> None:
            due[0] = False
            if waits[0]:
                rest()

        if synchronizes:
            self._push(worker, replied)
        if first:
            cores.run(self.compute(first), delayed)
        else:
            delayed()

    def _ended(self, worker: int, steps: int) -> None:
        self._calls_done += 1
        self._steps_done += steps
        self.ended(worker, steps)
        self.call(worker)

    def _pushing(self, worker: int) -> int:
        """Returns how many groups push to the round of a call (strategies/hogwild/timing/pushes_left.py)."""
        workers, begun = self.count, self._calls_begun
        scheduled = self._calls_done + IN_FLIGHT * workers
        if self._left is None or scheduled < self._calls:
            return workers
        as_far = sum(each >= begun[worker] for each in begun)
        return as_far + min(self._calls - sum(begun), workers - as_far)

    def _grace(self, worker: int) -> float:
        periods = list(self._periods[worker])[1:]
        return GRACE_PERIODS * min(periods) if periods else GRACE_FIRST

    def _push(self, worker: int, then: Then) -> None:
        """Pushes the progress of a worker; calls `then` when it has all replies."""
        way, cores = self.way, self.workers[worker].cores
        parts = way.option.fragments * self._shards
        in_round = way.rounds and self._turns[worker] > 0  # The first push has nothing to add.
        turn = self._turns[worker] % way.option.fragments
        self._turns[worker] += 1
        live, grace, half = self._pushing(worker), self._grace(worker), way.worker / way.option.fragments / 2
        count = len(self.sent) * self._shards
        replied = after_all(count, lambda: cores.run(half, then))
        held: list[tuple[int, Then]] = []

        def ended_everywhere() -> None:
            for number, reply in held:
                self.links.tell(self.workers[worker], self.servers[number], reply)

        ended_somewhere = after_all(count, ended_everywhere)

        def hold(number: int, reply: Then) -> None:
            """Sends a reply when the rounds of all ps have ended, as strategies/hogwild/synchronization/push_pull.py does."""
            held.append((number, reply))
            self.links.tell(self.servers[number], self.workers[worker], ended_somewhere)

        def send(number: int, shard: int) -> None:
            server, size = self.servers[number], self.sent[number] / parts

            def reply() -> None:
                self.reply(number, worker, size, replied)

            def ended() -> None:
                waits = in_round and len(self.sent) > 1
                self.serve(server, way.server / parts / 2, functools.partial(hold, number, reply) if waits else reply)

            def applied() -> None:
                if not in_round:
                    ended()
                    return
                key = (turn, number, shard)
                rounds = self._rounds.get(key) or self._rounds.setdefault(key, Rounds(self.clock, self.count))
                rounds.arrive(worker, live, grace, ended)

            def arrived() -> None:
                if shard + 2 < self._shards:  # Two travel at a time.
                    send(number, shard + 2)
                self.serve(server, way.server / parts / 2, applied)

            self.push(worker, number, size, arrived)

        def encoded() -> None:
            for number in range(len(self.sent)):
                for shard in range(min(2, self._shards)):
                    send(number, shard)

        cores.run(half, encoded)


def simulate(way: Way, network: Network, most: int = MOST_WORKERS) -> Simulated:
    """Returns what the simulation of a way to train finds. Of more workers than `most`, each simulated one stands for some."""
    if way.option.strategy == "multi_worker_mirrored":
        return simulate_ring(way, network)
    if way.option.strategy == "parameter_server":
        return simulate_steps(way, network, most)
    hogwild = Hogwild(way, network, most)
    return hogwild.run(hogwild.begin)
