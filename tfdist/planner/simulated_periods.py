"""Simulates `hogwild`: the calls of a worker group, its pushes and pulls, rounds, and the ends of epochs."""

import functools
import random
from collections import deque
from collections.abc import Callable

from tfdist.planner.costs import HOP_SECONDS
from tfdist.planner.events import Then, after_all
from tfdist.planner.simulated import BUNDLES, CYCLES, MOST_WORKERS, Network, Simulated, Simulation
from tfdist.planner.simulated_rounds import Rounds
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
        self._steps_left = self._epoch
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
        if self._steps_left is not None:
            steps = min(self._per_call(), self._steps_left)
            self._steps_left -= steps
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
        simulated = super().run(begin)
        if self.finished_at is None:
            return simulated
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
        if self._steps_left is None or scheduled < self._calls:
            return workers
        as_far = sum(each >= begun[worker] for each in begun)
        return as_far + min(self._calls - sum(begun), workers - as_far)

    def _grace(self, worker: int) -> float:
        periods = list(self._periods[worker])[1:]
        return GRACE_PERIODS * min(periods) if periods else GRACE_FIRST

    def _push(self, worker: int, then: Then) -> None:
        """Pushes the progress of a worker; calls `then` when it has all replies."""
        in_round = self.way.rounds and self._turns[worker] > 0  # The first push has nothing to add.
        turn = self._turns[worker] % self.way.option.fragments
        self._turns[worker] += 1
        _Push(self, worker, turn, in_round, self._pushing(worker), self._grace(worker), self._shards, then).begin()

    def round_of(self, turn: int, server: int, shard: int) -> Rounds:
        """Returns the rounds in which all groups push a shard of the fragment of a turn to a ps."""
        key = (turn, server, shard)
        if key not in self._rounds:
            self._rounds[key] = Rounds(self.clock, self.count)
        return self._rounds[key]


class _Push:
    """A push of one worker: a message for each shard of each ps, of which two travel at a time to a ps, and the replies.

    Args:
        hogwild: the simulation.
        worker: the number of the worker.
        turn: the number of the fragment.
        in_round: whether the push is in a round.
        live: how many groups push to this round.
        grace: how long the round waits for them, in seconds.
        shards: the number of shards on each ps.
        then: called when all replies have arrived.
    """

    def __init__(
        self, hogwild: Hogwild, worker: int, turn: int, in_round: bool, live: int, grace: float, shards: int, then: Then
    ) -> None:
        fragments = hogwild.way.option.fragments
        self._hogwild, self._worker, self._turn = hogwild, worker, turn
        self._in_round, self._live, self._grace = in_round, live, grace
        self._shards, self._parts = shards, fragments * shards
        self._half = hogwild.way.worker / fragments / 2  # The worker's own work: half of it before, half after the messages.
        count = len(hogwild.sent) * shards
        self._replied = after_all(count, lambda: hogwild.workers[worker].cores.run(self._half, then))
        self._held_replies: list[tuple[int, Then]] = []
        self._ended_somewhere = after_all(count, self._ended_everywhere)

    def begin(self) -> None:
        """Encodes the messages, and sends them."""
        self._hogwild.workers[self._worker].cores.run(self._half, self._encoded)

    def _encoded(self) -> None:
        for number in range(len(self._hogwild.sent)):
            for shard in range(min(2, self._shards)):
                self._send(number, shard)

    def _send(self, number: int, shard: int) -> None:
        self._hogwild.push(self._worker, number, self._size(number), functools.partial(self._arrived, number, shard))

    def _arrived(self, number: int, shard: int) -> None:
        if shard + 2 < self._shards:
            self._send(number, shard + 2)
        self._serve(number, functools.partial(self._applied, number, shard))

    def _applied(self, number: int, shard: int) -> None:
        if self._in_round:
            ended = functools.partial(self._ended, number)
            self._hogwild.round_of(self._turn, number, shard).arrive(self._worker, self._live, self._grace, ended)
        else:
            self._ended(number)

    def _ended(self, number: int) -> None:
        reply = functools.partial(self._reply, number)
        waits = self._in_round and len(self._hogwild.sent) > 1
        self._serve(number, functools.partial(self._hold, number, reply) if waits else reply)

    def _hold(self, number: int, reply: Then) -> None:
        """Sends a reply when the rounds of all ps have ended, as strategies/hogwild/synchronization/push_pull.py does."""
        self._held_replies.append((number, reply))
        self._hogwild.links.tell(self._hogwild.servers[number], self._hogwild.workers[self._worker], self._ended_somewhere)

    def _ended_everywhere(self) -> None:
        for number, reply in self._held_replies:
            self._hogwild.links.tell(self._hogwild.workers[self._worker], self._hogwild.servers[number], reply)

    def _reply(self, number: int) -> None:
        self._hogwild.reply(number, self._worker, self._size(number), self._replied)

    def _serve(self, number: int, then: Then) -> None:
        """Lets a ps work on one message: half of what it does for it, before or after the round."""
        self._hogwild.serve(self._hogwild.servers[number], self._hogwild.way.server / self._parts / 2, then)

    def _size(self, number: int) -> float:
        return self._hogwild.sent[number] / self._parts


def simulate_periods(way: Way, network: Network, most: int = MOST_WORKERS) -> Simulated:
    """Returns what the simulation finds; for the arguments see `simulate`."""
    hogwild = Hogwild(way, network, most)
    return hogwild.run(hogwild.begin)
