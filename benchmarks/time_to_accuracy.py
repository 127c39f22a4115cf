"""Seconds of training to nearly the accuracy of synchronous training, over links of several rates, with the defaults of tfdist.

    pip install mnist1d matplotlib
    sudo python benchmarks/time_to_accuracy.py --markdown benchmarks/time_to_accuracy.md --svg benchmarks/time_to_accuracy.svg

The target is the test accuracy of synchronous training, one process with the batches of all workers, minus half a point. Every
way trains the same Keras program (mnist1d, 40-H-H-10, SGD with momentum and a cosine schedule) for as many examples. Its tasks
run on nodes with one core and one link each (networks.py). The chief keeps the weights 20 times during the training, and
computes their accuracy after it. Seconds count from the end of the first call, which is mostly tracing, without the time to
read the weights. Each training adds a line to --results; a training with a line is not repeated.
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
from absl import app, flags
from quality_data import CLASSES, FEATURES, LOCAL_BATCH, mnist1d

FLAGS = flags.FLAGS
flags.DEFINE_list("nodes", ["2", "4"], "Numbers of nodes, each with a worker.")
flags.DEFINE_list("links", list(networks.RATES), "Only these links.")
flags.DEFINE_list("ways", [], "Only the ways whose name contains one of these.")
flags.DEFINE_list("seeds", ["1", "2", "3"], "Seeds of the initial weights and of the order of the examples.")
flags.DEFINE_integer("units", 512, "Units of each of the two hidden layers: 512 are 0.29 million parameters, 1344 are 1.87.")
flags.DEFINE_integer("steps", 8000, "Steps of all workers together, of 32 examples each.")
flags.DEFINE_string("rates", "2:0.2,4:0.4", "Learning rates of synchronous ways by number of nodes.")
flags.DEFINE_float("hogwild_rate", 0.2, "Learning rate under hogwild.")
flags.DEFINE_float("asynchronous_rate", 0.1, "Learning rate under parameter_server.")
flags.DEFINE_float("timeout", 1200.0, "Time limit for one training, in seconds.")
flags.DEFINE_string("results", "benchmarks/time_to_accuracy.jsonl", "Adds a line for each training.")
flags.DEFINE_string("markdown", None, "File whose part after `## Figures` is replaced by the tables.")
flags.DEFINE_string("svg", None, "File for the curves.")
flags.DEFINE_string("run", None, "Used by the tasks themselves: one training, as JSON.")

POINTS = 20
SYNCHRONOUS, MARGIN = "synchronous", 0.5
WAYS = {
    SYNCHRONOUS: None,
    "hogwild": {"strategy": "hogwild", "sync_period": 16},
    "hogwild, --longest_period 32": {"strategy": "hogwild", "sync_period": 16, "synchronization": {"longest_period": 32}},
    "multi_worker_mirrored": {},
    "parameter_server": {},
}
"""Ways to train: name -> what TF_CONFIG has under `tfdist`. The first of hogwild is what `--strategy hogwild` writes."""


def train(run):
    """One task of a training. The chief, or the first worker, writes the result."""
    import keras
    import tensorflow as tf

    import tfdist

    strategy = tfdist.strategy() if run["way"] != SYNCHRONOUS else tf.distribute.get_strategy()
    keras.utils.set_random_seed(run["seed"])
    nodes = run["nodes"]
    together = nodes if run["way"] in (SYNCHRONOUS, "multi_worker_mirrored") else 1
    steps = run["steps"] // together

    def network():
        hidden = [keras.layers.Dense(run["units"], activation="relu") for _ in range(2)]
        return keras.Sequential([keras.Input((FEATURES,)), *hidden, keras.layers.Dense(CLASSES)])

    with strategy.scope():
        model = network()
        schedule = keras.optimizers.schedules.CosineDecay(run["rate"], steps)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(schedule, momentum=0.9), loss, steps_per_execution=16)

    class Keeper(keras.callbacks.Callback):
        """Keeps (worker steps, seconds, weights) at times."""

        def on_train_begin(self, logs=None):
            self.kept, self.begin, self.lost = [], None, 0.0

        def on_train_batch_end(self, batch, logs=None):
            now = time.monotonic()
            if self.begin is None:
                self.begin = now
            elif (batch + 1) * POINTS // steps > len(self.kept) and batch + 1 < steps:
                self.kept.append(((batch + 1) * together, now - self.begin - self.lost, self.model.get_weights()))
                self.lost += time.monotonic() - now

        def on_train_end(self, logs=None):
            self.kept.append((steps * together, time.monotonic() - self.begin - self.lost, None))

    x, y = mnist1d()["train"]
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(y), seed=run["seed"]).repeat()
    keeper = Keeper()
    batches = data.batch(LOCAL_BATCH * together, drop_remainder=True)
    model.fit(batches, epochs=1, steps_per_epoch=steps, verbose=0, callbacks=[keeper])
    final = model.get_weights()
    if getattr(strategy, "tfdist_hooks", None) is None or strategy.tfdist_hooks.shows_progress:
        plain, (x, y) = network(), mnist1d()["test"]
        curve = []
        for done, seconds, weights in keeper.kept:
            plain.set_weights(final if weights is None else weights)
            accuracy = 100 * float((plain(x).numpy().argmax(-1) == y).mean())
            curve.append([done, round(seconds, 2), round(accuracy, 3)])
        part = Path(run["file"]).with_suffix(".part")
        part.write_text(json.dumps(run | {"curve": curve, "parameters": plain.count_params()}))
        part.rename(run["file"])


def measure(network, run, link):
    """Runs the tasks of a training, and returns its result, or None if it failed or took too long."""
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "result", Path(folder) / "log"
        jobs = {"worker": run["nodes"]}
        if run["way"] == SYNCHRONOUS:
            jobs = {"worker": 1}
        elif run["way"] != "multi_worker_mirrored":
            jobs = {"chief": 1, "worker": run["nodes"], "ps": run["nodes"]}
        ports = {job: 3000 + os.getpid() % 1000 * 3 + place for place, job in enumerate(jobs)}
        cluster = {job: [f"{network.address(node)}:{ports[job]}" for node in range(count)] for job, count in jobs.items()}
        command = [sys.executable, __file__, "--run", json.dumps(run | {"file": str(file)})]
        processes = []
        network.shape(networks.RATES[link])
        for job, count in jobs.items():
            for index in range(count):
                config = {"cluster": cluster, "task": {"type": job, "index": index}, "tfdist": WAYS[run["way"]] or {}}
                variables = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "4", "TF_CPP_MIN_LOG_LEVEL": "2"}
                if run["way"] != SYNCHRONOUS:
                    variables["TF_CONFIG"] = json.dumps(config)
                processes.append(network.start(index, command, log, variables))
        try:
            deadline = time.monotonic() + FLAGS.timeout
            while not file.exists() and time.monotonic() < deadline and not any(each.poll() for each in processes):
                time.sleep(0.2)
        finally:
            network.end(processes)
            network.shape(None)
        told = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("hogwild: ")]
        if file.exists():
            return json.loads(file.read_text()) | {"link": link, "told": told}
        print(log.read_text(errors="replace")[-3000:], file=sys.stderr)
        return None


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


def table(results, nodes):
    chosen, target = same(results, nodes=nodes), targets(results, nodes)
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
    for way in list(WAYS)[1:]:
        cells = []
        for link in networks.RATES:
            runs = [each for each in same(chosen, way=way, link=link) if each["seed"] in target]
            if not runs:
                cells.append("-")
                continue
            times = [seconds_to(each["curve"], target[each["seed"]]) for each in runs]
            reached = f"{statistics.median(times):.3g}" if all(times) else "never"
            accuracy = statistics.mean(each["curve"][-1][2] for each in runs)
            whole = statistics.median(each["curve"][-1][1] for each in runs)
            cells.append(f"{reached} ({accuracy:.2f}, {whole:.3g}, {len(runs)})")
        rates = sorted({str(each["rate"]) for each in same(chosen, way=way)})
        lines.append(f"| {way} | {', '.join(rates) or '-'} | " + " | ".join(cells) + " |")
    for each in same(chosen, way="hogwild"):
        lines += [f"\n{each['link']}, seed {each['seed']}: `{line}`" for line in each["told"]]
    return "\n".join(lines)


def plot(results, file):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tfdist"
    from matplotlib import pyplot

    shown = [
        (nodes, link) for nodes in map(int, FLAGS.nodes) for link in networks.RATES if same(results, nodes=nodes, link=link)
    ]
    figure, axes = pyplot.subplots(1, len(shown), figsize=(6 * len(shown), 4.4), squeeze=False)
    for (nodes, link), place in zip(shown, axes[0], strict=True):
        for number, way in enumerate(list(WAYS)[1:]):
            for each in same(results, nodes=nodes, link=link, way=way):
                seconds, values = zip(*((point[1], point[2]) for point in each["curve"]), strict=True)
                label = way if each["seed"] == same(results, nodes=nodes, link=link, way=way)[0]["seed"] else None
                place.plot(seconds, values, marker=".", color=f"C{number}", label=label)
        for target in targets(results, nodes).values():
            place.axhline(target, linestyle=":", color="gray")
        place.set(xlabel="seconds of training", ylabel="test accuracy, %", xscale="log", title=f"{nodes} nodes, {link}")
        place.legend()
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main(_):
    if FLAGS.run:
        train(json.loads(FLAGS.run))
        return
    if sentence := networks.missing():
        raise SystemExit(f"nothing was measured: {sentence}")
    figures.check(FLAGS.markdown)
    mnist1d()
    path = Path(FLAGS.results)
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    rates = {int(nodes): float(rate) for nodes, rate in (each.split(":") for each in FLAGS.rates.split(","))}
    for nodes in map(int, FLAGS.nodes):
        of_way = {"hogwild": FLAGS.hogwild_rate, "parameter_server": FLAGS.asynchronous_rate}
        with networks.Network(nodes) as network:
            for seed, way in ((int(seed), way) for seed in FLAGS.seeds for way in WAYS):
                if way != SYNCHRONOUS and FLAGS.ways and not any(part in way for part in FLAGS.ways):
                    continue
                for link in ["no limit"] if way == SYNCHRONOUS else FLAGS.links:
                    run = {"way": way, "nodes": nodes, "seed": seed, "units": FLAGS.units, "steps": FLAGS.steps}
                    run["rate"] = of_way.get(way, rates[nodes])
                    if same(results, **run, link=link):
                        continue
                    result = measure(network, run, link)
                    if result is None:
                        print(f"{nodes} nodes, {link}, {way}, seed {seed}: failed", flush=True)
                        continue
                    result["load"] = round(os.getloadavg()[0], 1)
                    results.append(result)
                    with path.open("a") as file:
                        file.write(json.dumps(result) + "\n")
                    _, seconds, accuracy = result["curve"][-1]
                    print(f"{nodes} nodes, {link}, {way}, seed {seed}: {accuracy:.2f} % after {seconds:.1f} s", flush=True)
    shown = [each for each in results if (each["units"], each["steps"]) == (FLAGS.units, FLAGS.steps)]
    machine = f"{len(os.sched_getaffinity(0))} cores, TensorFlow {version('tensorflow')}, Keras {version('keras')}"
    loads = [each["load"] for each in shown]
    texts = [f"{machine}; load {min(loads)} to {max(loads)}.", *(table(shown, nodes) for nodes in map(int, FLAGS.nodes))]
    figures.put(FLAGS.markdown, "\n\n".join(filter(None, texts)) + "\n")
    if FLAGS.svg:
        plot(shown, FLAGS.svg)


if __name__ == "__main__":
    try:
        app.run(main)
    except KeyboardInterrupt:
        sys.exit(130)
