"""Seconds of training to nearly the accuracy of synchronous training, over links of several rates, with the defaults of tfdist.

    pip install mnist1d matplotlib
    sudo python benchmarks/time_to_accuracy.py --horovod /path/to/horovod/bin/python \
        --markdown benchmarks/time_to_accuracy.md --svg benchmarks/time_to_accuracy.svg

The target is the test accuracy of synchronous training, one process with the batches of all workers, minus half a point. Every
way trains the same Keras program (mnist1d, 40-H-H-10, SGD with momentum and a cosine schedule) for as many examples. Its tasks
run on nodes with one core and one link each (networks.py). The chief keeps the weights 20 times during the training, and
computes their accuracy after it. Seconds count from the end of the first call, which is mostly tracing, without the time to
read the weights. Each training adds a line to --results; a training with a line is not repeated.

On a slow link some ways would train for an hour. A training that is not done after --longest seconds is ended, and its curve is
computed: the accuracies by steps are those of the same way and seed without a limit, or of synchronous training where steps are
synchronous, and the seconds are steps divided by the speed that was measured. Its line says so (`computed`).
"""

import json
import os
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import figures
import networks
import peers
from absl import app, flags
from quality_data import mnist1d
from time_to_accuracy_program import HOROVOD, MULTI_WORKER_MIRRORED, SYNCHRONOUS

FLAGS = flags.FLAGS
flags.DEFINE_list("nodes", ["2", "4"], "Numbers of nodes, each with a worker.")
flags.DEFINE_list("links", list(networks.RATES), "Only these links.")
flags.DEFINE_list("ways", [], "Only these ways.")
flags.DEFINE_list("seeds", ["1", "2", "3"], "Seeds of the initial weights and of the order of the examples.")
flags.DEFINE_integer("units", 512, "Units of each of the two hidden layers: 512 are 0.29 million parameters, 1344 are 1.87.")
flags.DEFINE_integer("steps", 8000, "Steps of all workers together, of 32 examples each.")
flags.DEFINE_string("rates", "2:0.2,4:0.4,8:0.4", "Learning rates of synchronous ways by number of nodes.")
flags.DEFINE_float("hogwild_rate", 0.2, "Learning rate under hogwild.")
flags.DEFINE_float("asynchronous_rate", 0.1, "Learning rate under parameter_server.")
flags.DEFINE_float("longest", 1200.0, "Seconds after the start of a job at which its training is ended.")
flags.DEFINE_string("horovod", None, "Python interpreter of an environment with tensorflow-cpu 2.15 and horovod 0.28.")
flags.DEFINE_string("results", "benchmarks/time_to_accuracy.jsonl", "Adds a line for each training.")
flags.DEFINE_string("markdown", None, "File whose part after `## Figures` is replaced by the tables.")
flags.DEFINE_string("svg", None, "File for the curves.")

PROGRAM = Path(__file__).with_name("time_to_accuracy_program.py")
MARGIN = 0.5
WAYS = {
    SYNCHRONOUS: None,
    "hogwild": {"strategy": "hogwild", "sync_period": 16},
    "hogwild in float32": {"strategy": "hogwild", "sync_period": 16, "synchronization": {"compression": "float32"}},
    "hogwild with bf16": {"strategy": "hogwild", "sync_period": 16, "synchronization": {"compression": "bf16"}},
    "hogwild with int8": {"strategy": "hogwild", "sync_period": 16, "synchronization": {"compression": "int8"}},
    "hogwild with --longest_period 32": {"strategy": "hogwild", "sync_period": 16, "synchronization": {"longest_period": 32}},
    MULTI_WORKER_MIRRORED: {},
    HOROVOD: None,
    "parameter_server": {},
}
"""Ways to train: name -> what TF_CONFIG has under `tfdist`. The first of hogwild is what `--strategy hogwild` writes."""


def jobs_of(run):
    """{job: tasks} of a training."""
    if run["way"] == SYNCHRONOUS:
        return {"worker": 1}
    if run["way"] in (MULTI_WORKER_MIRRORED, HOROVOD):
        return {"worker": run["nodes"]}
    return {"chief": 1, "worker": run["nodes"], "ps": run["nodes"]}


def start(network, run, log):
    """Starts the tasks of a training. Returns their processes."""
    jobs, processes = jobs_of(run), []
    ports = {job: 3000 + os.getpid() % 1000 * 3 + place for place, job in enumerate(jobs)}
    cluster = {job: [f"{network.address(node)}:{ports[job]}" for node in range(count)] for job, count in jobs.items()}
    python = FLAGS.horovod if run["way"] == HOROVOD else sys.executable
    for job, count in jobs.items():
        for index in range(count):
            config = {"cluster": cluster, "task": {"type": job, "index": index}, "tfdist": WAYS[run["way"]] or {}}
            variables = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "4", "TF_CPP_MIN_LOG_LEVEL": "2"}
            if run["way"] == HOROVOD:
                variables |= peers.horovod_variables(index, count, network.address(0))
            elif run["way"] != SYNCHRONOUS:
                variables["TF_CONFIG"] = json.dumps(config)
            processes.append(network.start(index, [python, str(PROGRAM), json.dumps(run)], log, variables))
    return processes


def measure(network, run, link, results):
    """Runs the tasks of a training, and returns its result, or None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "result", Path(folder) / "log"
        network.shape(networks.RATES[link])
        processes = start(network, run | {"file": str(file)}, log)
        try:
            deadline = time.monotonic() + FLAGS.longest
            while not file.exists() and time.monotonic() < deadline and not any(each.poll() for each in processes):
                time.sleep(0.2)
        finally:
            network.end(processes)
            network.shape(None)
        lines = log.read_text(errors="replace").splitlines()
        told = [line for line in lines if line.startswith("hogwild: ")]
        progress = file.with_suffix(".progress")
        if file.exists():
            found = json.loads(file.read_text())
            del found["file"]
            return found | {"link": link, "told": told}
        if progress.exists() and time.monotonic() >= deadline:
            steps, seconds = map(float, progress.read_text().split())
            return computed(run, results, steps / seconds) | {"link": link, "told": told}
        print("\n".join(lines[-40:]), file=sys.stderr)
        return None


def computed(run, results, speed):
    """A curve of accuracies measured on another link, at the `speed` of this one, in steps of all workers per second."""
    model = SYNCHRONOUS if run["way"] in (MULTI_WORKER_MIRRORED, HOROVOD) else run["way"]
    names = ("nodes", "seed", "units", "steps", "rate")
    (like,) = same(results, way=model, link="no limit", **{name: run[name] for name in names})
    curve = [[steps, round(steps / speed, 2), accuracy] for steps, _, accuracy in like["curve"]]
    return run | {"curve": curve, "parameters": like["parameters"], "computed": True}


def seconds_to(curve, target):
    """Seconds when the accuracy first reaches the target, between two points linearly; None if it never does."""
    before = None
    for _, seconds, accuracy in curve:
        if accuracy >= target:
            if before is None or accuracy == before[1]:
                return seconds
            return before[0] + (seconds - before[0]) * (target - before[1]) / (accuracy - before[1])
        before = (seconds, accuracy)
    return None


def same(results, **values):
    return [each for each in results if all(each[name] == value for name, value in values.items())]


def targets(results, nodes):
    """The target of each seed."""
    found = same(results, way=SYNCHRONOUS, nodes=nodes)
    return {each["seed"]: each["curve"][-1][2] - MARGIN for each in found}


def digits(seconds):
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"


def models(results):
    """The numbers of nodes and units that were measured."""
    return sorted({(each["nodes"], each["units"]) for each in results})


def table(results, nodes, units):
    chosen = same(results, nodes=nodes, units=units)
    target = targets(chosen, nodes)
    if not target:
        return ""
    goal = statistics.mean(target.values())
    million, steps = chosen[0]["parameters"] / 1e6, chosen[0]["steps"]
    lines = [
        f"{nodes} nodes, {million:.2f} million parameters, {steps} worker steps; target {goal:.2f} % "
        f"(synchronous {goal + MARGIN:.2f} %). Seconds to the target, in brackets accuracy and seconds at the end, and seeds:",
        "",
        "| | learning rate | " + " | ".join(networks.RATES) + " |",
        "|---|---|" + "---|" * len(networks.RATES),
    ]
    measured = {each["way"] for each in chosen}
    for way in list(WAYS)[1:]:
        if way not in measured:
            continue
        cells = []
        for link in networks.RATES:
            runs = [each for each in same(chosen, way=way, link=link) if each["seed"] in target]
            if not runs:
                cells.append("-")
                continue
            times = [seconds_to(each["curve"], target[each["seed"]]) for each in runs]
            reached = digits(statistics.median(times)) if all(times) else f"{times.count(None)} of {len(times)} never"
            reached = ("about " if any(each.get("computed") for each in runs) else "") + reached
            accuracy = statistics.mean(each["curve"][-1][2] for each in runs)
            whole = statistics.median(each["curve"][-1][1] for each in runs)
            cells.append(f"{reached} ({accuracy:.2f}, {digits(whole)}, {len(runs)})")
        rates = sorted({f"{each['rate']:g}" for each in same(chosen, way=way)})
        lines.append(f"| {way} | {', '.join(rates)} | " + " | ".join(cells) + " |")
    told = {each["link"]: each["told"] for each in same(chosen, way="hogwild", seed=min(target))}
    said = [f"* {link}: `{'; '.join(line.removeprefix('hogwild: ') for line in told[link])}`" for link in told if told[link]]
    return "\n".join([*lines, "", "What `hogwild` says:", "", *said] if said else lines)


def plot(results, file):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tfdist"
    from matplotlib import pyplot

    sizes = models(results)
    figure, axes = pyplot.subplots(len(sizes), len(networks.RATES), figsize=(15, 4.2 * len(sizes)), squeeze=False)
    for (nodes, units), row in zip(sizes, axes, strict=True):
        chosen = same(results, nodes=nodes, units=units)
        million = chosen[0]["parameters"] / 1e6
        for link, place in zip(networks.RATES, row, strict=True):
            for number, way in enumerate(list(WAYS)[1:]):
                for index, each in enumerate(same(chosen, link=link, way=way)):
                    seconds, values = zip(*((point[1], point[2]) for point in each["curve"]), strict=True)
                    style = ":" if each.get("computed") else "-"
                    place.plot(seconds, values, style, marker=".", color=f"C{number}", label=way if index == 0 else None)
            for target in targets(chosen, nodes).values():
                place.axhline(target, linestyle="--", linewidth=0.5, color="gray")
            title = f"{million:.2f} million parameters, {nodes} nodes, {link}"
            place.set(xlabel="seconds of training", ylabel="test accuracy, %", xscale="log", title=title)
            place.xaxis.set_minor_formatter("")
        row[0].legend()
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main(_):
    if sentence := networks.missing():
        raise SystemExit(f"nothing was measured: {sentence}")
    figures.check(FLAGS.markdown)
    mnist1d()
    path = Path(FLAGS.results)
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    rates = {int(nodes): float(rate) for nodes, rate in (each.split(":") for each in FLAGS.rates.split(","))}
    for nodes in map(int, FLAGS.nodes):
        of_strategy = {"hogwild": FLAGS.hogwild_rate, "parameter_server": FLAGS.asynchronous_rate}
        with networks.Network(nodes) as network:
            for seed, way in ((int(seed), way) for seed in FLAGS.seeds for way in WAYS):
                if (way == HOROVOD and not FLAGS.horovod) or (way != SYNCHRONOUS and FLAGS.ways and way not in FLAGS.ways):
                    continue
                for link in ["no limit"] if way == SYNCHRONOUS else FLAGS.links:
                    run = {"way": way, "nodes": nodes, "seed": seed, "units": FLAGS.units, "steps": FLAGS.steps}
                    run["rate"] = of_strategy.get(way.split()[0], rates[nodes])
                    if same(results, **run, link=link):
                        continue
                    result = measure(network, run, link, results)
                    if result is None:
                        print(f"{nodes} nodes, {link}, {way}, seed {seed}: failed", flush=True)
                        continue
                    result["load"] = round(os.getloadavg()[0], 1)
                    results.append(result)
                    with path.open("a") as file:
                        file.write(json.dumps(result) + "\n")
                    _, seconds, accuracy = result["curve"][-1]
                    print(f"{nodes} nodes, {link}, {way}, seed {seed}: {accuracy:.2f} % after {seconds:.1f} s", flush=True)
    shown = same(results, steps=FLAGS.steps)
    machine = f"{len(os.sched_getaffinity(0))} cores, TensorFlow {version('tensorflow')}, Keras {version('keras')}"
    loads = [each["load"] for each in shown]
    texts = [f"{machine}; load {min(loads)} to {max(loads)}.", *(table(shown, *size) for size in models(shown))]
    figures.put(FLAGS.markdown, "\n\n".join(filter(None, texts)) + "\n")
    if FLAGS.svg:
        plot(shown, FLAGS.svg)


if __name__ == "__main__":
    try:
        app.run(main)
    except KeyboardInterrupt:
        sys.exit(130)
