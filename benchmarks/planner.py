"""Predictions of `tfdist plan` against real runs that its constants have not seen.

    sudo python benchmarks/planner.py --markdown benchmarks/planner.md
    sudo python benchmarks/planner.py --models wide --links 100mbit --ways 2+1

For each model the planner's probe measures the program (planner_program.py) on this machine. Then each way to train runs on
nodes with one core and a link each (networks.py), and its examples per second are compared with the prediction. The exponent of
the formula was chosen on an older run of benchmarks/hogwild.py, with other models, batches and links.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import figures
import networks
from absl import app, flags

from tfdist.cluster import Cluster, Task
from tfdist.launch.jobs.job import Program
from tfdist.launch.plan import window
from tfdist.launch.plan.configurations import ALL
from tfdist.launch.plan.probe import Probe
from tfdist.planner import link, measurement
from tfdist.planner.costs import Costs
from tfdist.planner.option import Hardware, Option
from tfdist.planner.predict import Prediction, simulated
from tfdist.process_cluster import MEASURED
from tfdist.synchronization import Synchronization

FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["wide", "deep", "convolutions"], "Models of planner_program.py.")
flags.DEFINE_list("links", ["60mbit", "200mbit"], "Rates of the links.")
flags.DEFINE_list("ways", [], "Only the ways whose name contains one of these.")
flags.DEFINE_bool("slow_start_after_idle", True, "Linux's setting net.ipv4.tcp_slow_start_after_idle on the nodes.")
flags.DEFINE_float("seconds", 8.0, "Seconds that count for each link.")
flags.DEFINE_string("measurements", None, "Folder with a measurement MODEL.json per model; those that are missing are made.")
flags.DEFINE_string("results", None, "File to which results are added as lines of JSON; what it has is not run again.")
flags.DEFINE_string("markdown", None, "File whose part after `## Figures` is replaced by the tables.")
flags.DEFINE_bool("show", False, "Run nothing: print the tables of --results, with predictions from --measurements.")

PROGRAM = str(Path(__file__).with_name("planner_program.py"))
START_SECONDS, LEAST_REPORTS = 120.0, 6
SETTLE_SECONDS = 2.0
TRIED_STEPS = 30
"""`parameter_server` tries orders during the first 27 steps of each worker, which do not count."""

LONGEST_EPOCHS = 1.8
"""Epochs are counted as a whole if that does not take more than so many times the seconds."""

PRIORITY = -12

OPTIONS = {
    "all-reduce, 2": Option("multi_worker_mirrored", 2),
    "ps, 2+1 apart": Option("parameter_server", 2, 1),
    "ps, 2+2 together": Option("parameter_server", 2, 2, colocated=True),
    "ps, 2+2 apart": Option("parameter_server", 2, 2),
    "ps, 3+1 apart": Option("parameter_server", 3, 1),
    "hogwild 12, 2+1 apart": Option("hogwild", 2, 1, period=12),
    "hogwild 40, 2+2 together": Option("hogwild", 2, 2, colocated=True, period=40),
    "hogwild 40, 3+1 apart": Option("hogwild", 3, 1, period=40),
}
"""Ways to train: `2+1` are two workers and one ps, each with a node, or `together` on the same nodes."""

LATER = {
    "ps, 3+2 apart": Option("parameter_server", 3, 2),
    "ps, 3+3 together": Option("parameter_server", 3, 3, colocated=True),
}
"""Ways that run only if --ways names their numbers, such as 3+2."""


@dataclass(frozen=True)
class Result:
    """One cell: a model, a link and a way.

    Attributes:
        model: name of the model.
        rate: of the links.
        way: name of the way to train.
        predicted: examples per second.
        measured: the same.
        binding: what the prediction says that binds.
        load: load average after the measurement.
    """

    model: str
    rate: str
    way: str
    predicted: float
    measured: float
    binding: str
    load: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def cluster_of(option: Option, network: networks.Network, port: int) -> tuple[Cluster, dict[str, int]]:
    """Returns the cluster of an option, and the node of each task."""
    nodes = {f"worker:{index}": index for index in range(option.workers)}
    first = 0 if option.colocated else option.workers
    nodes |= {f"ps:{index}": first + index for index in range(option.ps)}
    if option.ps:
        nodes["chief:0"] = 0
    tasks = []
    for number, (name, node) in enumerate(nodes.items()):
        job, _, index = name.partition(":")
        tasks.append(Task(job, int(index), network.address(node), port + number))
    synchronization = Synchronization(delay=option.delay, compression=option.compression or "float32")
    chosen = {"sync_period": option.period, "synchronization": synchronization} if option.strategy == "hogwild" else {}
    return Cluster(tuple(tasks), strategy=option.strategy, **chosen), nodes


def started(network: networks.Network, option: Option, model: str, folder: Path, port: int):
    """Starts the tasks of an option; returns their processes and the report of their `fit`."""
    cluster, nodes = cluster_of(option, network, port)
    reporter = "chief:0" if option.ps else "worker:0"
    processes = []
    for task in cluster.tasks:
        variables = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "TF_CPP_MIN_LOG_LEVEL": "2"}
        variables |= {"TF_CONFIG": json.dumps(cluster.tf_config(task.job, task.index)), MEASURED: "1"}
        variables["TFDIST_REPORT"] = str(folder / "report.json") if task.name == reporter else ""
        command = [sys.executable, PROGRAM, model]
        processes.append(network.start(nodes[task.name], command, folder / f"{task.name}.log", variables))
        prefer(processes[-1].pid)
    return processes


def prefer(pid: int) -> None:
    """Gives a session of processes priority over other programs of the machine, which here stand for nothing (man 7 sched)."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(PRIORITY))


def speed(folder: Path, since: float, seconds: float, steps: int = 0) -> float | None:
    """Returns examples per second of the reports since a moment, as soon as there are enough; None until then."""
    fit = window.read(folder / "report.json")
    if fit is None or fit.batch is None or not fit.steps or fit.steps[-1][1] < steps:
        return None
    reports = [report for report in fit.steps if report[0] >= since]
    if len(reports) <= LEAST_REPORTS or reports[-1][0] - reports[0][0] < seconds:
        return None
    begin, last = reports[0], reports[-1]
    if fit.epoch and last[0] - begin[0] < LONGEST_EPOCHS * seconds:  # Whole epochs: workers wait for each other at their ends.
        epochs = (last[1] - begin[1]) // fit.epoch
        last = next((each for each in reports if epochs and each[1] - begin[1] >= epochs * fit.epoch), begin)
        if last[0] - begin[0] < seconds:
            return None
    return fit.batch * (last[1] - begin[1]) / (last[0] - begin[0])


def wait_for(folder: Path, processes, since: float, seconds: float, steps: int = 0) -> float:
    deadline = time.monotonic() + START_SECONDS
    while (found := speed(folder, since, seconds, steps)) is None:
        if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
            logs = "\n".join(path.read_text()[-1500:] for path in sorted(folder.glob("*.log")))
            raise RuntimeError(f"a job has failed or is too slow:\n{logs}")
        time.sleep(0.2)
    return found


def measure(network: networks.Network, option: Option, model: str, rates: list[str], port: int) -> dict[str, float]:
    """Returns examples per second at each rate."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # From the beginning: whether hogwild's rounds wait for a worker depends on what was before.
        rates = rates if option.strategy == "hogwild" else rates[::-1]
        network.shape(rates[0])
        processes = started(network, option, model, folder, port)
        try:
            tried = TRIED_STEPS * option.workers if option.strategy == "parameter_server" else 0
            wait_for(folder, processes, 0.0, SETTLE_SECONDS, tried)  # It trains.
            for rate in rates:
                network.shape(rate)
                # What was sent ahead at the rate before ends; and hogwild reports whole periods.
                times = 2 if option.strategy == "hogwild" else 1
                time.sleep(times * SETTLE_SECONDS)
                found[rate] = wait_for(folder, processes, time.monotonic(), times * FLAGS.seconds)
        finally:
            network.end(processes)
    return found


def measurement_of(model: str) -> measurement.Measurement:
    """Returns what the planner's probe knows about a model; from a file, if there is one."""
    path = Path(FLAGS.measurements or tempfile.gettempdir()) / f"{model}.json"
    if FLAGS.measurements and path.exists():
        return measurement.read(str(path))
    found = Probe(Program(script=PROGRAM, args=[model]), ALL, 1, Synchronization(), 90.0, tell).run()
    if FLAGS.measurements:
        path.parent.mkdir(parents=True, exist_ok=True)
        measurement.save(found, str(path))
    return found


def predicted(costs: Costs, rate: str, option: Option) -> Prediction:
    """Returns the prediction of tfdist plan, but for machines that share cores, as the nodes do (networks.py)."""
    hardware = Hardware(link.bytes_per_second(rate) * link.GOODPUT, 1)
    return simulated(costs, hardware, option, shared_by=len(os.sched_getaffinity(0)))


def anew(result: Result, costs: Costs) -> Result:
    prediction = predicted(costs, result.rate, (OPTIONS | LATER)[result.way])
    return replace(result, predicted=prediction.examples_per_second, binding=prediction.binding)


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def table(results: list[Result]) -> str:
    """Returns the tables: all cells, the errors, and what was chosen."""
    lines = [
        "| model | link | way | predicted, examples/s | measured | error | binds | load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        cells = [each.model, each.rate, each.way, f"{each.predicted:.0f}", f"{each.measured:.0f}", f"{each.error:+.0%}"]
        lines.append("| " + " | ".join([*cells, each.binding, f"{each.load:.1f}"]) + " |")
    errors = sorted(abs(each.error) for each in results)
    lines += ["", f"{len(results)} cells. Error: mean {sum(errors) / len(errors):.1%}, median {errors[len(errors) // 2]:.1%}, "]
    lines[-1] += f"worst {errors[-1]:.1%}; {sum(error <= 0.1 for error in errors)} of {len(errors)} are within 10 %."
    for kind in ("all-reduce", "ps", "hogwild"):
        cells = [abs(each.error) for each in results if each.way.startswith(kind)]
        if cells:
            lines += ["", f"{kind}: {len(cells)} cells, mean {sum(cells) / len(cells):.1%}, worst {max(cells):.1%}."]
    compared, worse = 0, []
    for model, rate in dict.fromkeys((each.model, each.rate) for each in results):
        for among in ("", "ps", "hogwild"):
            cells = [each for each in results if (each.model, each.rate) == (model, rate) and each.way.startswith(among)]
            if not cells:
                continue
            chosen, best = max(cells, key=lambda cell: cell.predicted), max(cells, key=lambda cell: cell.measured)
            compared += 1
            if chosen.way != best.way:
                reached = f"{chosen.measured / best.measured:.0%}"
                worse.append(f"| {model} | {rate} | {among or 'all'} | {chosen.way} | {best.way} | {reached} |")
    lines += ["", "For each model and link, among all ways, those with ps, and those of hogwild: the best predicted way was "]
    lines[-1] += f"the best that ran in {compared - len(worse)} of {compared} comparisons."
    if worse:
        lines += ["", "| model | link | among | chosen | best that ran | the chosen one reaches |", "|---" * 6 + "|", *worse]
    return "\n".join(lines)


def main(_: list[str]) -> None:
    figures.check(FLAGS.markdown)
    path = Path(FLAGS.results) if FLAGS.results else None
    results = [Result(**json.loads(line)) for line in path.read_text().splitlines()] if path and path.exists() else []
    if not FLAGS.show:
        if sentence := networks.missing():
            raise SystemExit(f"nothing was measured: {sentence}")
        run(results, path)
    if FLAGS.measurements:  # Predictions of the present code.
        known = {model: Costs(measurement_of(model)) for model in dict.fromkeys(each.model for each in results)}
        results = [anew(each, known[each.model]) for each in results]
    figures.put(FLAGS.markdown, table(results) + "\n")


def run(results: list[Result], path: Path | None) -> None:
    done = {(each.model, each.rate, each.way) for each in results}
    ways = {name: option for name, option in OPTIONS.items() if not FLAGS.ways or any(part in name for part in FLAGS.ways)}
    ways |= {name: option for name, option in LATER.items() if any("+" in part and part in name for part in FLAGS.ways)}
    for model in FLAGS.models:
        costs = Costs(measurement_of(model))
        for number, (way, option) in enumerate(ways.items()):
            rates = [rate for rate in FLAGS.links if (model, rate, way) not in done]
            if not rates:
                continue
            with networks.Network(option.machines, FLAGS.slow_start_after_idle) as network:
                try:
                    found = measure(network, option, model, rates, 3000 + 20 * number)
                except RuntimeError as error:
                    tell(f"{model}, {way}: {error}")
                    continue
            for rate, measured in found.items():
                prediction = predicted(costs, rate, option)
                values = (prediction.examples_per_second, measured, prediction.binding, os.getloadavg()[0])
                results.append(Result(model, rate, way, *values))
                tell(f"{model}, {rate}, {way}: predicted {values[0]:.0f}, measured {measured:.0f}, {results[-1].error:+.0%}")
                if path is not None:
                    with open(path, "a") as file:
                        file.write(json.dumps(vars(results[-1])) + "\n")


if __name__ == "__main__":
    app.run(main)
