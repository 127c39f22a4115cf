"""Simulates how fast up to 1,000 workers train, in one process, event by event.

    python benchmarks/scale_simulated.py --measured m.json --workers 8,64,1000 --link 10gbit
    python benchmarks/scale_simulated.py --measured m.json --measure trial --markdown benchmarks/scale_simulated.md

What a step and an exchange cost comes from a measurement of `tfdist plan --save m.json`. Machines have cores, and a link with a
rate and a delay in each direction, which serve in the order of arrival. Messages flow through both links at once. The time of a
step is random, from a gamma distribution. The planner's formulas know neither random steps nor the order of messages.

Accuracy is not simulated here: benchmarks/quality_simulated.py does that, for up to about 16 groups.

--measure MODEL measures a program of planner_program.py on this machine, also with 2, 4 and 8 workers.
"""

import heapq
import itertools
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import figures
import scale_measured
from absl import app, flags
from scale_ways import Way, way_of

from tfdist.launch.plan import configurations
from tfdist.launch.plan.configurations import ALL
from tfdist.planner import link, measurement
from tfdist.planner.costs import HOP_SECONDS, Costs
from tfdist.planner.option import Hardware, Option
from tfdist.planner.predict import DELAY_PART, predict

FLAGS = flags.FLAGS

CYCLES = 9
"""Steps or periods that the slowest worker makes. The first third of the time does not count."""

PARTS, MANY, FEWEST_PARTS = 8, 64, 1
"""Parts of a message; with more than 64 workers, whose messages mix anyway, it is one part."""

BUNDLES = 8
"""More ps than these are simulated as so many that have the links and cores of several."""


@dataclass(frozen=True)
class Network:
    """What all machines have: bytes per second of a link, seconds of delay, and cores."""

    rate: float
    delay: float
    cores: int


class Served:
    """Equal units that serve in the order of arrival."""

    def __init__(self, name: str, count: int = 1) -> None:
        self.name, self.busy, self.count, self._free = name, 0.0, count, [0.0] * count

    def take(self, now: float, seconds: float) -> float:
        """Returns when the service ends of who arrives now."""
        self.busy += seconds
        end = max(now, heapq.heappop(self._free)) + seconds
        heapq.heappush(self._free, end)
        return end


class Machine:
    """The cores and the two directions of the link of a machine, or of several that do the same."""

    def __init__(self, name: str, cores: int, count: int = 1) -> None:
        self.count, cores = count, cores * count
        self.cores = Served(f"processor of {name}", cores)
        self.up, self.down = Served(f"link of {name}, sent"), Served(f"link of {name}, received")


def _bundled(sent: Sequence[float], most: int) -> tuple[list[int], list[float]]:
    """Returns how many ps each of at most `most` bundles has, and the bytes that a worker sends to each bundle."""
    bounds = [len(sent) * number // min(most, len(sent)) for number in range(min(most, len(sent)) + 1)] if sent else [0]
    pairs = list(itertools.pairwise(bounds))
    return [end - begin for begin, end in pairs], [sum(sent[begin:end]) for begin, end in pairs]


class Simulation:
    """One training.

    Args:
        way: how to train.
        network: on what.
        seed: of the random times.
    """

    def __init__(self, way: Way, network: Network, seed: int = 0) -> None:
        option = way.option
        self._way, self._network, self._random = way, network, random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self.now = itertools.count(), 0.0
        self._workers = [Machine(f"worker {number}", network.cores) for number in range(option.workers)]
        self._parts = PARTS if option.workers <= MANY else FEWEST_PARTS
        counts, self._sent = _bundled(way.sent, option.ps if option.colocated or way.is_one_machine else BUNDLES)
        self._servers = [Machine(f"ps {number}", network.cores, count) for number, count in enumerate(counts)]
        if option.colocated:
            self._servers[: option.workers] = self._workers[: option.ps]
        chief = Machine("the chief", network.cores) if option.chief_apart else self._workers[0]
        if way.is_one_machine:
            chief = Machine("all tasks", network.cores)
            self._workers, self._servers = [chief] * option.workers, [chief] * option.ps
        self._chief, self._python = chief, Served("chief processor")
        self._ends: list[list[float]] = [[] for _ in range(option.workers)]
        self._slow = set(range(option.workers))  # Those that have not made `CYCLES`.
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def run(self) -> tuple[float, str, float]:
        """Returns examples per second, the busiest resource, and the part of the time for which that is busy."""
        option = self._way.option
        begin = self._step if option.strategy == "parameter_server" else self._period
        for worker in range(option.workers):
            self._at(0.0, lambda worker=worker: begin(worker))
        while self._slow:
            self.now, _, event = heapq.heappop(self._events)
            event()
        # Each worker's own rate, without the beginning, when none waits for others.
        steps, speed = option.period if option.strategy == "hogwild" else 1, 0.0
        for ends in self._ends:
            counted = [end for end in ends if end >= self.now / 3]
            counted = counted if len(counted) > 2 else ends
            speed += (len(counted) - 1) / (counted[-1] - counted[0]) * steps * self._way.examples
        machines = {id(each): each for each in (*self._workers, *self._servers, self._chief)}.values()
        served = [each for machine in machines for each in (machine.cores, machine.up, machine.down)] + [self._python]
        busiest = max(served, key=lambda each: each.busy / each.count)
        return speed, busiest.name, min(1.0, busiest.busy / busiest.count / self.now)

    def _at(self, moment: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), event))

    def _send(self, source: Machine, target: Machine, size: float, then: Callable[[], None]) -> None:
        """Sends bytes in parts, which flow through both links at once. Parts of several messages take turns, as TCP shares."""
        if source is target or not size:
            self._at(self.now, then)
            return
        seconds, delay = size / self._parts / self._network.rate, self._network.delay

        def part(left: int) -> None:
            sent = source.up.take(self.now, seconds / source.count)

            def arrive() -> None:
                end = max(sent + delay, target.down.take(self.now, seconds / target.count))
                if left:  # A full link of the target holds the source back.
                    self._at(max(sent, end - delay), lambda: part(left - 1))
                else:
                    self._at(end, then)

            self._at(sent - seconds / source.count + delay, arrive)

        part(self._parts - 1)

    def _compute(self, steps: int = 1) -> float:
        mean, spread = self._way.compute, self._way.spread
        return mean * self._random.gammavariate(steps * spread**-2, spread**2) if spread else mean * steps

    def _after(self, count: int, then: Callable[[], None]) -> Callable[[], None]:
        """Returns a function that calls `then` when it was called so often."""
        left = [count]

        def one() -> None:
            left[0] -= 1
            if not left[0]:
                then()

        return one

    def _ended(self, worker: int, begin: Callable[[int], None], prepared: float) -> None:
        """Begins the next cycle of a worker when the chief has prepared it."""
        self._ends[worker].append(self.now)
        if len(self._ends[worker]) == CYCLES:
            self._slow.discard(worker)
        if self._way.option.workers == 1:  # The chief waits for the result before it goes on.
            prepared = self._python.take(self.now, self._way.chief)
        self._at(max(self.now, prepared), lambda: begin(worker))

    def _prepare(self) -> float:
        self._chief.cores.take(self.now, self._way.chief)
        return self._python.take(self.now, self._way.chief) if self._way.option.workers > 1 else 0.0

    # parameter_server: pull from every ps, compute, push to every ps.

    def _step(self, worker: int) -> None:
        way, machine, prepared = self._way, self._workers[worker], self._prepare()
        done = self._after(len(self._sent), lambda: self._barrier(worker, prepared))

        def computed() -> None:
            for server, size in zip(self._servers, self._sent, strict=True):
                self._send(machine, server, size, lambda server=server: self._serve(server, done))

        def pulled() -> None:
            self._at(machine.cores.take(self.now, self._compute() + way.worker), computed)

        arrived = self._after(len(self._sent), pulled)

        def pull() -> None:
            for server, size in zip(self._servers, self._sent, strict=True):
                reply = lambda server=server, size=size: self._send(server, machine, size, arrived)  # noqa: E731
                self._serve(server, reply)

        self._send(self._chief, machine, way.batches, pull)

    def _serve(self, server: Machine, then: Callable[[], None]) -> None:
        """Half of the cost of a ps is for the pull, half for the push."""
        self._at(self._worked(server, self._way.server / 2), then)

    def _worked(self, server: Machine, seconds: float) -> float:
        """Returns when each of the ps has done its work."""
        return max(server.cores.take(self.now, seconds) for _ in range(server.count)) if seconds else self.now

    def _barrier(self, worker: int, prepared: float) -> None:
        end = lambda: self._ended(worker, self._step, prepared)  # noqa: E731
        if self._way.is_synchronous:
            self._together(len(self._ends[worker]), end)
        else:
            end()

    def _together(self, number: int, then: Callable[[], None]) -> None:
        """Goes on when all workers have come so far."""
        waiting = self._waiting.setdefault(number, [])
        waiting.append(then)
        if len(waiting) == self._way.option.workers:
            for each in self._waiting.pop(number):
                self._at(self.now, each)

    # hogwild: steps on a replica; the exchange of each fragment goes on meanwhile, for `delay` updates at most.

    def _period(self, worker: int) -> None:
        way, option, machine, prepared = self._way, self._way.option, self._workers[worker], self._prepare()
        between = max(1, option.period // option.fragments)
        delay = max(1, between // DELAY_PART) if option.delay is None else min(option.delay, between)
        state = {"step": 0, "due": 0, "waits": False}

        def step() -> None:
            number = state["step"]
            is_late = number == option.period or number % between == delay % between
            state["waits"] = bool(number and is_late and state["due"])
            if not state["waits"]:
                run()

        def run() -> None:
            state["waits"] = False
            fragment, within = divmod(state["step"], between)
            if state["step"] == option.period:
                self._ended(worker, self._period, prepared)
                return
            if within == 0:  # What the last period has made is pushed while this one runs.
                state["due"] += 1
                self._at(machine.cores.take(self.now, way.worker / option.fragments), lambda: push(fragment))
            # Up to where it pushes or waits, unless other tasks take turns with it.
            count = 1 if way.is_one_machine else (delay if within < delay else between) - within
            state["step"] += count
            self._at(machine.cores.take(self.now, self._compute(count)), step)

        def replied() -> None:
            state["due"] -= 1
            if not state["due"] and state["waits"]:
                run()

        def push(fragment: int) -> None:
            arrived = self._after(len(self._sent), replied)
            for number, (server, size) in enumerate(zip(self._servers, self._sent, strict=True)):
                part = size / option.fragments
                reply = lambda server=server, part=part: self._send(server, machine, part, arrived)  # noqa: E731
                key = (len(self._ends[worker]) * option.fragments + fragment) * len(self._sent) + number
                pushed = (lambda key=key, reply=reply: self._together(key, reply)) if way.rounds else reply
                serve = lambda server=server, pushed=pushed: self._at(  # noqa: E731
                    self._worked(server, way.server / option.fragments), pushed
                )
                self._send(machine, server, part, serve)

        self._send(self._chief, machine, way.batches, step)


def ring(way: Way, network: Network, seed: int = 0) -> tuple[float, str, float]:
    """The same for `multi_worker_mirrored`, by its closed formula: the slowest worker, then 2 (n - 1) hops of a ring."""
    workers, generator = way.option.workers, random.Random(seed)
    draw = (lambda: generator.gammavariate(way.spread**-2, way.spread**2)) if way.spread else lambda: 1.0
    slowest = sum(max(draw() for _ in range(workers)) for _ in range(CYCLES)) / CYCLES
    share = max(1.0, workers / network.cores) if way.is_one_machine else 1.0
    computed = share * (way.compute * (1.0 if way.is_one_machine else slowest) + way.worker)
    hops = 2 * (workers - 1)
    wire = 0.0 if way.is_one_machine else hops * (sum(way.sent) / workers / network.rate + network.delay)
    time_ = computed + wire + hops * HOP_SECONDS
    busiest = max((wire / time_, "worker link"), (computed / time_, "worker processor"))
    return way.examples / time_, busiest[1], busiest[0]


def simulate(way: Way, network: Network, seed: int = 0) -> tuple[float, str, float]:
    """Returns examples per second, the busiest resource, and the part of the time for which that is busy."""
    if way.option.strategy == "multi_worker_mirrored":
        return ring(way, network, seed)
    return Simulation(way, network, seed).run()


def real(measured: measurement.Measurement) -> str:
    """Returns the table of real runs on one machine, of those that the costs do not come from."""
    costs, cores = Costs(replace(measured, runs=measured.runs[: len(ALL)])), os.cpu_count() or 1

    def simulated(run: measurement.Run, slower: float) -> float:
        option = Option(run.strategy, run.workers, run.ps, period=run.period, delay=configurations.DELAY if run.ps else None)
        way = way_of(costs, option, is_one_machine=True)
        times = {name: getattr(way, name) * slower for name in ("compute", "worker", "server", "chief")}
        return simulate(replace(way, **times), Network(1e12, 0.0, cores))[0]

    return scale_measured.table(measured.runs[len(ALL) :], simulated, cores)


def scaled(measured: measurement.Measurement) -> str:
    """Returns the table of simulated clusters."""
    costs, rate = Costs(measured), link.bytes_per_second(FLAGS.link) * link.GOODPUT
    network = Network(rate, FLAGS.delay_ms / 1000, FLAGS.cores)
    lines = [
        "| strategy | workers | ps | simulated, examples/s | by the planner's formula | busiest | busy |",
        "|---" * 7 + "|",
    ]
    for workers in map(int, FLAGS.workers):
        ps = max(1, workers // 4)
        base = {"workers": workers, "ps": ps, "chief_apart": True}
        options = [Option("multi_worker_mirrored", workers), Option("parameter_server", **base)]
        options += [Option("hogwild", **base, period=64), Option("hogwild", **base, period=64, delay=1)]
        for option in options:
            # Workers read their own data: a chief could not send that of so many.
            compute = costs.wall(costs.compute, FLAGS.cores)
            way = way_of(costs, option, spread=FLAGS.spread, batches=0.0, compute=compute)
            if option.strategy == "multi_worker_mirrored":
                way = replace(way, compute=costs.wall(costs.all_reduce(workers)[0], FLAGS.cores))
            formula = predict(Costs(replace(measured, batch_bytes=0)), Hardware(rate, FLAGS.cores), option).examples_per_second
            ways = {option.strategy: way}
            if option.strategy == "parameter_server":
                ways["parameter_server, synchronous"] = replace(way, is_synchronous=True)
            if option.strategy == "hogwild":
                title = f"hogwild {option.period}, delay {option.delay or 'measured'}, {option.compression or 'float32'}"
                ways = {f"{title}, nesterov": way, f"{title}, average": replace(way, rounds=False)}
            for name, each in ways.items():
                speed, busiest, busy = simulate(each, network)
                planned = f"{formula:.0f}" if each is way else "-"
                lines.append(f"| {name} | {workers} | {option.ps or ''} | {speed:.0f} | {planned} | {busiest} | {busy:.0%} |")
    return "\n".join(lines)


def define_flags() -> None:
    """Defines the flags of the command. Tests import this file beside other commands, whose flags have the same names."""
    flags.DEFINE_string("measured", None, "Measurement of tfdist plan --save, or that --measure writes.", required=True)
    flags.DEFINE_string("measure", None, "Model of planner_program.py to measure first.")
    flags.DEFINE_list("workers", ["8", "64", "256", "1000"], "Numbers of workers.")
    flags.DEFINE_string("link", "10gbit", "Rate of the link of each machine.")
    flags.DEFINE_float("delay_ms", 0.05, "Delay of a message on the way, milliseconds.")
    flags.DEFINE_integer("cores", 4, "Cores of each machine.")
    flags.DEFINE_float("spread", 0.1, "Standard deviation of the time of a step, in units of its mean.")
    flags.DEFINE_string("markdown", None, "File whose part after `## Figures` is replaced by the tables.")


def main(_: list[str]) -> None:
    figures.check(FLAGS.markdown)
    if FLAGS.measure:
        measurement.save(scale_measured.measure(FLAGS.measure), FLAGS.measured)
    measured = measurement.read(FLAGS.measured)
    begin = time.monotonic()
    size = f"{measured.model_bytes / 1e6:.1f} MB of parameters, {measured.batch} examples per step"
    text = [f"`{Path(measured.program).name}`: {size}; load {os.getloadavg()[0]:.1f}.", real(measured)]
    text.append(f"Links of {FLAGS.link}, {FLAGS.delay_ms} ms, {FLAGS.cores} cores per machine, spread of steps {FLAGS.spread}:")
    text.append(scaled(measured))
    text.append(f"Simulated in {time.monotonic() - begin:.0f} s.")
    figures.put(FLAGS.markdown, "\n\n".join(part for part in text if part) + "\n")


if __name__ == "__main__":
    define_flags()
    app.run(main)
