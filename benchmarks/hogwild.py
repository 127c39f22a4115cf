"""Worker-steps per second of `hogwild` and its peers: the same Keras model on two nodes, over links of several rates.

    sudo python benchmarks/hogwild.py --horovod /path/to/horovod/bin/python --markdown benchmarks/hogwild.md
    sudo python benchmarks/hogwild.py --quick

Node k has one processor core and one link (networks.py) and carries worker k and, if the strategy has ps, ps k. The chief of
parameter_server and hogwild is on node 0 beside them, so all ways use the same two machines. Each way's job (peers.py) takes
turns with the limit, one training per worker without communication: while one trains, the other is paused. In a turn the links
get their rate, and the way trains. Counting begins when every worker has reported twice. The limit is measured before and after
each turn of the way, and ratios are to the mean of both.
"""

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import figures
import networks
import peers
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("rounds", 2, "Turns of each way on each link.", lower_bound=1)
flags.DEFINE_float("seconds", 2.5, "Seconds that a turn counts, at least, until each worker has reported three times.")
flags.DEFINE_list("models", ["1024", "256"], "Units of each of the two hidden layers.")
flags.DEFINE_integer(
    "batch", 64, "Examples per worker and step. With 1 a step costs little, so what a synchronization costs shows."
)
flags.DEFINE_list("hogwild", ["20", "50", "100", "100:int4"], "Sync periods, each with options after colons.")
flags.DEFINE_integer("steps", None, "Steps per execution of hogwild and of the limit. Default: the sync period, and 20.")
flags.DEFINE_list("ways", [], "Only the ways whose name contains one of these, and the limit.")
flags.DEFINE_list("links", list(networks.RATES), "Only these links. The slow worker is measured without limit.")
flags.DEFINE_string("horovod", None, "Python interpreter of an environment with tensorflow-cpu 2.15 and horovod 0.28.")
flags.DEFINE_string("markdown", None, "File whose part after `## Figures` is replaced by the tables.")
flags.DEFINE_bool("quick", False, "Test that everything works: one round of one-second turns of some ways of the small model.")
flags.DEFINE_bool("slow_worker", True, "Measure the first model also with the last worker at a quarter of its core's time.")

OPTIONS_OF = {
    **{word: ("compression", word) for word in ("bf16", "int8", "int4")},
    **{word: ("outer", word) for word in ("average", "nesterov", "delayed_nesterov")},
}
"""Options by the word that stands for them in --hogwild. Others are written as `delay=4`."""

WITHOUT_PS = "without_ps"
"""The word in --hogwild for a cluster without ps, whose workers hold the global parameters."""

NODES = 2
LIMIT = "no communication (the limit)"
SLOW = "one worker 4 times slower"
SLOW_TIMES = 5  # Turns with the slow worker are longer: each begins with calls in which the other one waits for it.
START_SECONDS, REPORT_SECONDS = 120.0, 40.0
BURST_SECONDS = 0.003
"""Reports within this time count as one."""


@dataclass
class Way:
    """One way to train, and its job.

    Attributes:
        name: its row in the table.
        program: its function in peers.py.
        steps: steps per execution.
        streams: number of workers that report separately.
        jobs: its jobs, each with a task per node; the chief is one.
        period: steps of a worker between two synchronizations; 0 without.
        options: keys of its TF_CONFIG besides cluster and task.
        reads_on_workers: whether its workers read their data themselves although it has a chief.
        port: the first of its ports.
        python: the interpreter that runs it.
        processes: those of its tasks, by job and index.
        sent: bytes that a node has sent in the turns without limit, the mean of the nodes.
        used: processor time of all its tasks in those turns, in seconds.
        done: worker-steps reported in those turns.
    """

    name: str
    program: str
    steps: int
    streams: int = 1
    jobs: tuple[str, ...] = ("worker",)
    period: int = 1
    options: dict = field(default_factory=dict)
    reads_on_workers: bool = False
    port: int = 0
    python: str = sys.executable
    processes: dict[tuple[str, int], subprocess.Popen] = field(default_factory=dict)
    sent: float = 0.0
    used: float = 0.0
    done: int = 0

    @property
    def file(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.name)

    def environment(self, network: networks.Network, job: str, index: int) -> dict[str, str]:
        """One thread computes, as a node has one core; four may wait for the network."""
        variables = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "4", "TF_CPP_MIN_LOG_LEVEL": "2"}
        if self.program == "horovod":
            variables |= peers.horovod_variables(index, NODES, network.address(0))
        elif self.program != "alone":
            cluster = {
                each: [f"{network.address(node)}:{self.port + place}" for node in range(1 if each == "chief" else NODES)]
                for place, each in enumerate(self.jobs)
            }
            task = {"type": job, "index": index}
            variables["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task} | self.options)
        return variables

    def signal(self, number: int) -> None:
        for process in self.processes.values():
            os.killpg(process.pid, number)

    def seconds(self) -> float:
        """Returns the processor time that its processes have used."""
        ticks = 0
        for process in self.processes.values():
            with contextlib.suppress(OSError):
                ticks += sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def ended(self) -> bool:
        return any(process.poll() is not None for process in self.processes.values())


def ways() -> list[Way]:
    served = ("chief", "worker", "ps")
    found = [
        Way("multi_worker_mirrored", "multi_worker_mirrored", 4),
        Way("parameter_server", "served", 4, NODES, served),
    ]
    if FLAGS.horovod:
        found.append(Way("Horovod 0.28.1, TensorFlow 2.15", "horovod", 4, python=FLAGS.horovod))
    for entry in FLAGS.hogwild:
        period, *chosen = entry.split(":")
        values = dict(OPTIONS_OF[word] if word in OPTIONS_OF else word.split("=") for word in chosen if word != WITHOUT_PS)
        jobs = ("chief", "worker") if WITHOUT_PS in chosen else served
        period, values = int(period), {name: int(value) if value.isdecimal() else value for name, value in values.items()}
        options = {"sync_period": period, "synchronization": values}
        name = ", ".join([f"hogwild, sync period {period}", *(word.translate({61: " ", 95: " "}) for word in chosen)])
        found.append(
            Way(name, "served", FLAGS.steps or period, NODES, jobs, period, {"tfdist": options | {"strategy": "hogwild"}}, True)
        )
    wanted = FLAGS.ways or (["mirrored", "period 20"] if FLAGS.quick else [""])
    found = [way for way in found if any(part in way.name for part in wanted)]
    return [Way(LIMIT, "alone", FLAGS.steps or 20, NODES, period=0), *found]


class Comparison:
    """All ways of one model, started, on one network."""

    def __init__(self, network: networks.Network, folder: Path, units: int) -> None:
        self._network = network
        self._folder = folder
        self._units = units
        self._ports = 3000
        self.failed: dict[str, str] = {}
        self._give_turn(None)

    def start(self, way: Way, rate: str | None = None) -> None:
        """Starts the tasks of a way on links of a rate, and waits until each worker has trained."""
        begin = time.monotonic()
        self._network.shape(rate)
        way.port = self._ports = self._ports + 10  # Ports of its own: those of the job before may not be free yet.
        for path in self._folder.glob(f"{way.file}.*"):
            path.unlink()
        options = {
            "folder": str(self._folder),
            "name": way.file,
            "units": self._units,
            "batch": FLAGS.batch,
            "steps": way.steps,
        }
        options |= {"workers": NODES, "reads_on_workers": way.reads_on_workers}
        program = str(Path(__file__).with_name("peers.py"))
        self._give_turn(way)
        for job in way.jobs:
            for index in range(1 if job == "chief" else NODES):
                command = [
                    way.python,
                    program,
                    way.program,
                    json.dumps(options | {"index": index}),
                ]
                log = self._folder / f"{way.file}-{job}-{index}.log"
                environment = way.environment(self._network, job, index)
                way.processes[job, index] = self._network.start(index, command, log, environment)
        if self._wait_for(way, way.streams, begin, START_SECONDS):
            self._rest(way)
            tell(f"{way.name}: started in {time.monotonic() - begin:.0f} s")

    def end(self, way: Way) -> None:
        """Ends the tasks of a way."""
        self._network.end(list(way.processes.values()))
        way.processes.clear()

    def turn(self, way: Way, rate: str | None, slow: bool = False) -> float | None:
        """Returns worker-steps per second, or None if the way has failed."""
        if way.name in self.failed:
            return None
        last = way.processes["worker", NODES - 1]
        if slow:
            self._network.slow(last, 0.25)
        self._network.shape(rate)
        begin, before, used = time.monotonic(), sum(self._network.sent()), way.seconds()
        self._give_turn(way)
        if way.program == "horovod":
            way.signal(signal.SIGCONT)
        try:
            if not self._wait_for(way, 2 * way.streams, begin, REPORT_SECONDS):
                return None
            first = time.monotonic()
            time.sleep(FLAGS.seconds * (SLOW_TIMES if slow else 1))
            if not self._wait_for(way, 3 * way.streams, first, REPORT_SECONDS):
                return None
            end = time.monotonic()
            if not self._wait_for(way, way.streams, end, REPORT_SECONDS):
                return None
        finally:
            if slow:
                self._network.slow(last, 1.0)
            self._rest(way)
        reports = self._reports(way, begin)
        if rate is None:  # A link that has just become slow makes TCP send much again, which no real one does.
            # What is done and not reported when the turn ends will be in the next; so only the sums over turns are exact.
            way.sent += (sum(self._network.sent()) - before) / NODES
            way.used += way.seconds() - used
            way.done += sum(steps for task in reports for _, steps in task)
        return sum(steps_within(task, way.streams // len(reports), begin, first, end) for task in reports) / (end - first)

    def _give_turn(self, way: Way | None) -> None:
        part = self._folder / "turn.part"
        part.write_text(way.file if way else "")
        part.rename(self._folder / "turn")

    def _rest(self, way: Way) -> None:
        """Ends the turn, and waits until it computes and sends nothing more."""
        self._give_turn(None)
        if way.program == "horovod" and not way.ended():
            way.signal(signal.SIGSTOP)
        deadline = time.monotonic() + REPORT_SECONDS
        before, quiet = (sum(self._network.sent()), way.seconds()), 0
        while quiet < 3 and time.monotonic() < deadline:
            time.sleep(0.2)
            now = (sum(self._network.sent()), way.seconds())
            quiet = quiet + 1 if now[0] - before[0] < 10_000 and now[1] - before[1] < 0.04 else 0
            before = now

    def _reports(self, way: Way, since: float) -> list[list[tuple[float, int]]]:
        """Returns time and worker-steps of all reports, for each task that reports."""
        found = []
        for path in sorted(self._folder.glob(f"{way.file}.[0-9]*")):
            lines = [line.split() for line in path.read_text().splitlines()]
            found.append([(float(at), int(steps)) for at, steps in lines if float(at) > since])
        return found

    def _wait_for(self, way: Way, count: int, since: float, seconds: float) -> bool:
        """Returns whether the way has reported that often since then. Otherwise ends it and drops it from the comparison."""
        deadline = time.monotonic() + seconds
        while sum(len(bursts(reports)) for reports in self._reports(way, since)) < count:
            if way.ended() or time.monotonic() > deadline:
                reason = "ended" if way.ended() else f"did nothing for {seconds:.0f} s"
                paths = [self._folder / f"{way.file}-{job}-{index}.log" for job, index in way.processes]
                logs = [path.read_text()[-800:] for path in paths]
                self.failed[way.name] = reason
                tell("\n".join([f"{way.name} {reason}; the ends of its logs:", *logs]))
                self.end(way)
                return False
            time.sleep(0.05)
        return True


def bursts(reports: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Combines reports that come at once into one."""
    found: list[tuple[float, int]] = []
    for at, steps in reports:
        if found and at - found[-1][0] < BURST_SECONDS:
            found[-1] = (found[-1][0], found[-1][1] + steps)
        else:
            found.append((at, steps))
    return found


def steps_within(reports: list[tuple[float, int]], streams: int, begin: float, first: float, end: float) -> float:
    """Returns worker-steps between `first` and `end`, given reports since `begin`.

    What is reported at the ends of this time was partly done outside it: a worker has done what it reports since its last
    report, which in the list of several workers is that many places before.
    """
    done = 0.0
    merged = bursts(reports)
    for place, (at, steps) in enumerate(merged):
        since = merged[place - streams][0] if place >= streams else begin
        done += steps * max(0.0, min(at, end) - max(since, first)) / (at - since)
    return done


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def compare(network: networks.Network, units: int, slow_worker: bool) -> str:
    """Runs all rounds of one model; returns its table."""
    rates = {link: rate for link, rate in networks.RATES.items() if link in FLAGS.links}
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(network, Path(folder), units)
        everything = ways()
        places = [(link, rate, False) for link, rate in rates.items()]
        if slow_worker:
            places.append((SLOW, None, True))
        try:
            limit, *others = everything
            comparison.start(limit)
            for way, (link, rate, slow) in itertools.product(others, places):
                if way.name in comparison.failed:
                    continue
                # A job for each link: links of users do not change, and hogwild decides its delay once.
                comparison.start(way, rate)
                for round_ in range(FLAGS.rounds):
                    # Before and after: on a machine with neighbors the limit changes by the minute.
                    before, measured, after = (comparison.turn(each, rate, slow) for each in (limit, way, limit))
                    if before is None or after is None:
                        raise SystemExit("nothing was measured: there is no limit to compare with")
                    mean = (before + after) / 2
                    found[LIMIT, link].append((mean, 1.0))
                    if measured is None:
                        break
                    found[way.name, link].append((measured, measured / mean))
                    told = f"{measured:.1f} worker-steps/s, {measured / mean:.2f} of the limit, {mean:.1f}"
                    tell(f"{way.name}, round {round_ + 1}, {link}: {told}")
                comparison.end(way)
        finally:
            network.end([process for way in everything for process in way.processes.values()])
    return table(units, everything, [link for link, *_ in places], found, comparison.failed)


def table(units, everything, links, found, failed) -> str:
    size = 4 * (784 * units + units + units * units + units + 10 * units + 10)
    ideal = 2 * (NODES - 1) / NODES * size
    lines = [
        f"{units} units: {size / 4e6:.2f} million parameters, {size / 1e6:.2f} MB",
        "",
        "| | " + " | ".join(links) + " | a node sends per synchronization, MB (of the ring's) | its processor, ms |",
        "|---|" + "---|" * (len(links) + 2),
    ]
    of_step = everything[0].used / everything[0].done if everything[0].done else 0.0
    for way in everything:
        cells = []
        for link in links:
            rates = found.get((way.name, link))
            rate, ratio = (statistics.median(each[place] for each in rates or [(0, 0)]) for place in (0, 1))
            cells.append(f"{rate:.3g} ({ratio:.2g})" if rates else "-")
        name = f"{way.name}: {failed[way.name]}" if way.name in failed else way.name
        sent = way.sent * way.period * NODES / way.done if way.done else 0
        amount = f"{sent / 1e6:.2f} ({sent / ideal:.2f})" if sent else "-"
        # What a worker-step costs more than without communication, for all of a node's tasks and, on one node, the chief.
        cost = f"{1000 * (way.used / way.done - of_step) * way.period:.1f}" if of_step and way.done and way.period else "-"
        lines.append("| " + " | ".join([name, *cells, amount, cost]) + " |")
    return "\n".join(lines)


def main(_: list[str]) -> None:
    if sentence := networks.missing():
        raise SystemExit(f"nothing was measured: {sentence}")
    figures.check(FLAGS.markdown)
    if FLAGS.quick:
        FLAGS.rounds, FLAGS.seconds, FLAGS.models = 1, 1.0, FLAGS.models[-1:]
    begin, load = time.monotonic(), os.getloadavg()[0]
    machine = f"{len(os.sched_getaffinity(0))} cores, TensorFlow {version('tensorflow')}, Keras {version('keras')}"
    texts = [f"{machine}; load before: {load:.1f}; worker-steps per second, in brackets their ratio to the limit."]
    with networks.Network(NODES) as network:
        speeds = []
        for link, rate in networks.RATES.items():
            network.shape(rate)
            speeds.append(f"{link}: {networks.speed(network)[0]:.0f} Mbit/s")
        texts.append(f"One TCP connection between the nodes gets {', '.join(speeds)}.")
        for units in FLAGS.models:
            texts.append(compare(network, int(units), FLAGS.slow_worker and units == FLAGS.models[0]))
            tell(texts[-1])
    texts.append(f"All of it took {(time.monotonic() - begin) / 60:.0f} minutes.")
    figures.put(FLAGS.markdown, "\n\n".join(texts) + "\n")


if __name__ == "__main__":
    try:
        app.run(main)
    except KeyboardInterrupt:
        sys.exit(130)
