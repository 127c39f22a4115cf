"""The chief's own work for each sync period or step of a worker group: processor time, against a bare call of TensorFlow's.

    python benchmarks/chief.py [--calls 300] [--epochs 5] [--markdown benchmarks/chief.md]

The figures are for each sync period under hogwild, and each step under parameter_server. Each job has 1 chief, 2 workers and
1 ps on this machine, and a model so small that the work of the chief is most of what happens. Processor time is that of all
threads of the chief's process (`time.process_time`): other programs on the machine change it less than wall time.

A bare call is the limit: TensorFlow's coordinator makes a group run a function that takes the bytes of one call's batches and
returns as many numbers as the logs of its steps. The same chief makes these calls in the same job.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import figures
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 5, "Epochs that count. Figures are medians over them.", lower_bound=1)
flags.DEFINE_integer("calls", 300, "Sync periods, or steps, of an epoch.", lower_bound=1)
flags.DEFINE_list("only", [], "Only the rows whose name contains one of these.")
flags.DEFINE_string("markdown", None, "File whose part after `## Figures` is replaced by the table; else it is printed only.")
flags.DEFINE_string("profile", None, "Folder for profiles of the chief's threads, one set per row. They double the figures.")
flags.DEFINE_string("run", None, "Used by the jobs themselves.")

PERIOD, BATCH, FEATURES, CLASSES = 16, 32, 64, 10
FIRST_CALLS, BARE_CALLS = 100, 300
ROWS = {
    "hogwild": {
        "hogwild, workers read their data": {"reads": "workers"},
        "hogwild, workers read, a callback for each batch": {"reads": "workers", "callback": True},
        "hogwild, the chief sends the batches": {},
        "hogwild, the chief sends, a callback for each batch": {"callback": True},
        "hogwild, train_on_batch": {"alone": True, "steps": 1},
    },
    "parameter_server": {
        "parameter_server": {"steps": 1},
        "parameter_server, a callback for each batch": {"steps": 1, "callback": True},
    },
}
"""By strategy: what each row of the table does."""


def batch():
    import numpy as np

    generator = np.random.default_rng(1)
    return generator.normal(size=(BATCH, FEATURES)).astype("float32"), generator.integers(0, CLASSES, size=BATCH)


def compiled():
    import keras

    layers = [keras.Input((FEATURES,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(CLASSES)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, metrics=["accuracy"])
    return model


def measured(work):
    """Returns the seconds of the processor and of the wall that `work` takes."""
    processor, wall = time.process_time(), time.monotonic()
    work()
    return time.process_time() - processor, time.monotonic() - wall


def row_of(strategy, steps, reads="chief", callback=False, alone=False):
    """Returns the seconds of each epoch of a row: processor and wall for each call."""
    import keras
    import tensorflow as tf

    class Begin(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.begin = time.process_time(), time.monotonic()

        def on_epoch_end(self, epoch, logs=None):
            now = time.process_time(), time.monotonic()
            found.append([after - before for after, before in zip(now, self.begin, strict=True)])

    class Batches(keras.callbacks.Callback):
        def on_train_batch_end(self, number, logs=None):
            self.loss = logs["loss"]

    x, y = batch()
    found = []
    with strategy.scope():
        model = compiled()

    def fit(calls, epochs):
        found.clear()
        if alone:
            found.extend(measured(lambda: [model.train_on_batch(x, y) for _ in range(calls)]) for _ in range(epochs))
            return
        data = strategy.distribute_datasets_from_function(dataset) if reads == "workers" else dataset(None)
        callbacks = [Begin(), *([Batches()] if callback else [])]
        model.fit(data, steps_per_epoch=calls * steps, epochs=epochs, verbose=0, callbacks=callbacks)

    def dataset(context):
        return tf.data.Dataset.from_tensors((x, y)).repeat()

    fit(FIRST_CALLS, 2)
    fit(FLAGS.calls, FLAGS.epochs)
    return [[each / FLAGS.calls for each in epoch] for epoch in found]


def bare(strategy, steps, reads="chief", callback=False, alone=False):
    """Returns the processor seconds of calls that only carry the bytes of a row's calls."""
    import numpy as np
    import tensorflow as tf

    from tfdist.strategies.runtime import chief_device

    data = np.zeros([sum(value.nbytes for value in batch()) * steps if reads == "chief" else 8], np.uint8)
    function = tf.function(lambda message: tf.zeros([steps, 5], tf.float64) + tf.cast(message[0], tf.float64))
    with tf.device("/job:worker/replica:0/task:0"):
        function = function.get_concrete_function(tf.TensorSpec([None], tf.uint8))

    def work(calls):
        made = [strategy.executions.schedule(lambda group: function(chief_device.constant(data))) for _ in range(calls)]
        for execution in made:
            strategy.executions.result_of(execution).numpy()

    work(BARE_CALLS)
    return [measured(lambda: work(BARE_CALLS))[0] / BARE_CALLS for _ in range(3)]


def profile_threads(folder):
    """Profiles the main thread and the threads of the groups. Returns a function that writes and restarts the profiles."""
    import cProfile

    from tfdist.strategies.coordinator.members import queue_readers

    profiles = []
    original = queue_readers._QueueReader._process_queue

    def profiled(reader):
        profiles.append(cProfile.Profile())
        profiles[-1].enable()
        original(reader)

    queue_readers._QueueReader._process_queue = profiled
    profiles.append(cProfile.Profile())
    profiles[0].enable()

    def write(name):
        for number, profile in enumerate(profiles):
            profile.dump_stats(Path(folder) / f"{name}-{number}.prof")

    return write


def job(wanted, result):
    """The program of the chief: measures all rows of its strategy."""
    write = profile_threads(FLAGS.profile) if FLAGS.profile else None
    import tfdist

    strategy = tfdist.strategy()
    rows = ROWS[wanted]
    found = {}
    for name, options in rows.items():
        if not FLAGS.only or any(part in name for part in FLAGS.only):
            options = {"steps": PERIOD} | options
            found[name] = row_of(strategy, **options), bare(strategy, **options)
            if write is not None:
                write(name.replace(" ", "_"))
    Path(result).write_text(json.dumps(found))


def results(strategy):
    """Runs a job. Returns what `job` has found."""
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, "-m", "tfdist.launch", "--tier=CUSTOM", "--strategy", strategy]
        command += [f"--{job}_machine_type=standard" for job in ("master", "worker", "parameter_server")]
        command += ["--worker_count=2", "--parameter_server_count=1"]
        command += ["--sync_period", str(PERIOD)] if strategy == "hogwild" else []
        command += [os.path.abspath(__file__), "--", "--run", json.dumps([strategy, str(result)])]
        command += [f"--epochs={FLAGS.epochs}", f"--calls={FLAGS.calls}", f"--only={','.join(FLAGS.only)}"]
        command += [f"--profile={os.path.abspath(FLAGS.profile)}"] if FLAGS.profile else []
        with log.open("wb") as output:
            if subprocess.run(command, timeout=600, cwd=folder, stdout=output, stderr=output).returncode:
                raise SystemExit(f"the job of {strategy} failed:\n{log.read_text()[-3000:]}")
        return json.loads(result.read_text())


def spread(values, scale=1e3):
    return f"{statistics.median(values) * scale:.2f} ({min(values) * scale:.2f} to {max(values) * scale:.2f})"


def main(_):
    if FLAGS.run:
        job(*json.loads(FLAGS.run))
        return
    figures.check(FLAGS.markdown)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, load before: {os.getloadavg()[0]:.1f}"
    lines = [f"{machine}; milliseconds for each period or step; medians (minimum to maximum).", ""]
    lines += ["| | processor, chief | processor, bare call | ratio | wall |", "|---|---|---|---|---|"]
    for strategy, rows in ROWS.items():
        if FLAGS.only and not any(part in name for name in rows for part in FLAGS.only):
            continue
        for name, (epochs, limit) in results(strategy).items():
            processor, wall = zip(*epochs, strict=True)
            ratio = statistics.median(processor) / statistics.median(limit)
            lines.append(f"| {name} | {spread(processor)} | {spread(limit)} | {ratio:.1f} | {spread(wall)} |")
            print(lines[-1], flush=True)
    figures.put(FLAGS.markdown, "\n".join(lines) + "\n")


if __name__ == "__main__":
    app.run(main)
