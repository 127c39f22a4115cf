"""Quality of models that Hogwild trains, against synchronous training on as many examples.

    pip install mnist1d matplotlib
    python benchmarks/quality.py --results benchmarks/quality.jsonl          # trains what the file lacks
    python benchmarks/quality.py --results benchmarks/quality.jsonl --show benchmarks/quality.svg > table.md

Hogwild trains in clusters of processes: chief, 8 workers and 1 ps on this machine. Synchronous training is one process with the
batches of all workers, which computes the same as data parallel training. The chief reads the global parameters 20 times during
the training.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time

from absl import app, flags
from quality_data import CLASSES, FEATURES, GROUPS, HIDDEN, LOCAL_BATCH, STEPS, mnist1d, text

FLAGS = flags.FLAGS
flags.DEFINE_string("results", "benchmarks/quality.jsonl", "Each training adds a line; a training with a line is not repeated.")
flags.DEFINE_string("show", None, "Prints the tables of --results, and writes this plot.")
flags.DEFINE_string("only", "", "Trains only the settings whose name contains this, or ends with it if it ends with a $.")
flags.DEFINE_integer("seeds", 3, "Trainings of each setting.")
flags.DEFINE_float("timeout", 1500.0, "Time limit for the trainings of one setting, in seconds.")
flags.DEFINE_string("run", None, "Used by the trainings themselves: the setting and its seeds, as JSON.")

POINTS = 20
TEXT_GROUPS, TEXT_BATCH, TEXT_STEPS, CONTEXT, WIDTH, LAYERS = 4, 32, 2400, 64, 64, 2


@dataclasses.dataclass(frozen=True)
class Setting:
    """One training: `period` 0 is synchronous training; `options` are those of `tfdist.Synchronization`."""

    task: str
    period: int
    rate: float
    options: tuple[tuple[str, object], ...] = ()

    @property
    def name(self):
        if not self.period:
            return f"{self.task} synchronous rate={self.rate}"
        options = " ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.task} period={self.period} rate={self.rate} {options}"


def _of(task, period, rate, **options):
    return Setting(task, period, rate, tuple(options.items()))


SETTINGS = [
    *(_of("mnist1d", 0, rate) for rate in (0.5, 0.6, 0.7)),
    _of("mnist1d", 16, 0.2),
    _of("mnist1d", 16, 0.2, delay=1),
    _of("mnist1d", 16, 0.2, outer_learning_rate=0.7, outer_momentum=0.5),
    _of("mnist1d", 64, 0.15),
    _of("mnist1d", 64, 0.1),
    _of("mnist1d", 64, 0.1, delay=1),
    _of("mnist1d", 64, 0.2),
    _of("mnist1d", 16, 0.2, outer="nesterov", outer_learning_rate=0.7, outer_momentum=0.7, delay=0),
    _of("mnist1d", 16, 0.2, outer="delayed_nesterov", outer_learning_rate=0.7, outer_momentum=0.5, delay=0),
    _of("mnist1d", 16, 0.3, outer="average", delay=0),
    _of("mnist1d", 16, 0.2, outer="nesterov", outer_learning_rate=0.7, outer_momentum=0.7, fragments=4, delay=1),
    _of("mnist1d", 16, 0.2, outer="average", fragments=4, delay=1),
    _of("mnist1d", 16, 0.1, outer="elastic", delay=0),
    _of("mnist1d", 16, 0.025, outer="sum", delay=0),
    _of("mnist1d", 64, 0.1, outer="nesterov", outer_learning_rate=1.0, outer_momentum=0.7, delay=0),
    _of("mnist1d", 64, 0.1, outer="delayed_nesterov", outer_learning_rate=1.0, outer_momentum=0.5, delay=0),
    _of("mnist1d", 64, 0.2, outer="average", delay=0),
    *(_of("text", 0, rate) for rate in (0.005, 0.01, 0.02, 0.04)),
    *(_of("text", 16, rate) for rate in (0.01, 0.02)),
    _of("text", 16, 0.01, compression="int8"),
    _of("text", 16, 0.01, outer_learning_rate=0.7, outer_momentum=0.8, compression="int8"),
    *(_of("text", 50, rate, delay=0) for rate in (0.01, 0.02)),
    *(
        _of("text", 50, rate, outer="nesterov", outer_learning_rate=outer_rate, outer_momentum=momentum, delay=0)
        for rate, outer_rate, momentum in (
            (0.01, 0.7, 0.8),
            (0.01, 0.7, 0.9),
            (0.01, 0.8, 0.8),
            (0.01, 0.9, 0.9),
            (0.01, 1.0, 0.6),
            (0.01, 1.0, 0.8),
            (0.014, 0.7, 0.9),
            (0.02, 0.7, 0.9),
            (0.02, 1.0, 0.6),
        )
    ),
]


class Mnist1d:
    """The network 40-128-128-10 with SGD, momentum 0.9 and a cosine schedule; the figure is accuracy in percent."""

    groups, batch, steps = GROUPS, LOCAL_BATCH, STEPS

    @staticmethod
    def model(rate, total):
        import keras

        model = keras.Sequential(
            [
                keras.Input((FEATURES,)),
                keras.layers.Dense(HIDDEN, activation="relu"),
                keras.layers.Dense(HIDDEN, activation="relu"),
                keras.layers.Dense(CLASSES),
            ]
        )
        schedule = keras.optimizers.schedules.CosineDecay(rate, total)
        optimizer = keras.optimizers.SGD(schedule, momentum=0.9)
        return model, optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @staticmethod
    def dataset(seed, examples):
        import tensorflow as tf

        del examples
        x, y = mnist1d()["train"]
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(y), seed=seed).repeat()

    @staticmethod
    def figure(model, split):
        x, y = mnist1d()[split]
        return 100 * float((model(x).numpy().argmax(-1) == y).mean())


class Text:
    """A character transformer of 2 layers with AdamW, warm-up and a cosine schedule; the figure is the loss in nats."""

    groups, batch, steps = TEXT_GROUPS, TEXT_BATCH, TEXT_STEPS

    @staticmethod
    def model(rate, total):
        import keras
        from keras import layers

        characters = text()[1]
        inputs = keras.Input((CONTEXT,), dtype="int32")
        x = layers.Embedding(characters, WIDTH)(inputs)
        x = x + layers.Embedding(CONTEXT, WIDTH)(keras.ops.cumsum(keras.ops.ones_like(inputs), axis=1) - 1)  # Positions.
        for _ in range(LAYERS):
            normed = layers.LayerNormalization()(x)
            x = x + layers.MultiHeadAttention(4, WIDTH // 4)(normed, normed, use_causal_mask=True)
            inner = layers.Dense(4 * WIDTH, activation="gelu")(layers.LayerNormalization()(x))
            x = x + layers.Dense(WIDTH)(inner)
        outputs = layers.Dense(characters)(layers.LayerNormalization()(x))
        schedule = keras.optimizers.schedules.CosineDecay(0.0, total - total // 20, 0.1, "cosine", rate, total // 20)
        optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.1, clipnorm=1.0)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return keras.Model(inputs, outputs), optimizer, loss

    @staticmethod
    def dataset(seed, examples):
        import numpy as np
        import tensorflow as tf

        train = text()[0]["train"]
        begins = np.random.default_rng(seed).integers(0, len(train) - CONTEXT - 1, examples)
        rows = train[begins[:, None] + np.arange(CONTEXT + 1)]
        dataset = tf.data.Dataset.from_tensor_slices(rows).repeat()
        return dataset.map(lambda row: (tf.cast(row[:-1], tf.int32), tf.cast(row[1:], tf.int32)))

    @staticmethod
    def figure(model, split):
        import keras
        import numpy as np

        held = text()[0][split]
        rows = np.asarray(held[: len(held) // (CONTEXT + 1) * (CONTEXT + 1)]).reshape(-1, CONTEXT + 1).astype("int32")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        parts = [(len(part), float(loss(part[:, 1:], model(part[:, :-1])))) for part in np.array_split(rows, 8)]
        return sum(n * value for n, value in parts) / len(rows)


TASKS = {"mnist1d": Mnist1d, "text": Text}


def strategy_of(setting, task):
    if not setting.period:
        return None
    import tfdist
    from tfdist.cluster import Cluster, Task

    cluster = Cluster(
        (Task("chief", 0), *(Task("worker", index) for index in range(task.groups)), Task("ps", 0)),
        strategy="hogwild",
        sync_period=setting.period,
        synchronization=tfdist.Synchronization(**dict(setting.options)),
    )
    return tfdist.strategy(cluster)


def train(setting, seeds):
    import keras

    task = TASKS[setting.task]
    together = 1 if setting.period else task.groups  # Synchronous training takes the batches of all workers in one step.
    total = task.steps * task.groups // together
    every = setting.period or 16

    class Reader(keras.callbacks.Callback):
        """Keeps the weights at times: (steps of each worker, seconds, weights)."""

        def on_train_begin(self, logs=None):
            self.kept, self.begin, self.lost = [], None, 0.0

        def on_train_batch_end(self, batch, logs=None):
            now = time.monotonic()
            if self.begin is None:
                self.begin, self.first = now, batch + 1  # Nothing before it, which is mostly tracing.
            elif (batch + 1) * POINTS // total > len(self.kept) and batch + 1 < total:
                kept = (batch + 1, now - self.begin - self.lost, self.model.get_weights())
                self.kept.append(kept)
                self.lost += time.monotonic() - now

        def on_train_end(self, logs=None):
            self.kept.append((total, time.monotonic() - self.begin - self.lost, None))

    strategy = strategy_of(setting, task)
    for seed in seeds:
        keras.utils.set_random_seed(seed)
        load = os.getloadavg()[0]
        with strategy.scope() if strategy else contextlib.nullcontext():
            model, optimizer, loss = task.model(setting.rate, total)
            model.compile(optimizer, loss, steps_per_execution=every)
        dataset = task.dataset(seed, total * task.batch * together).batch(task.batch * together, drop_remainder=True)
        reader = Reader()
        model.fit(dataset, epochs=1, steps_per_epoch=total, verbose=0, callbacks=[reader])
        plain = task.model(setting.rate, total)[0]
        curve = []
        for steps, seconds, weights in reader.kept:
            plain.set_weights(model.get_weights() if weights is None else weights)
            curve.append([steps * together // task.groups, round(seconds, 2), round(task.figure(plain, "validation"), 4)])
        found = {
            "name": setting.name,
            **dataclasses.asdict(setting),
            "seed": seed,
            "parameters": plain.count_params(),
            "curve": curve,
            "validation": curve[-1][2],
            "test": round(task.figure(plain, "test"), 4),
            "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        }
        with open(FLAGS.results, "a") as file:
            file.write(json.dumps(found) + "\n")


def results():
    if not os.path.exists(FLAGS.results):
        return []
    with open(FLAGS.results) as file:
        return [json.loads(line) for line in file]


def main(_):
    if FLAGS.run:
        run = json.loads(FLAGS.run)
        setting = Setting(run["task"], run["period"], run["rate"], tuple(map(tuple, run["options"])))
        train(setting, run["seeds"])
        return
    if FLAGS.show:
        import quality_shown

        quality_shown.show(results(), SETTINGS, TASKS, FLAGS.show)
        return
    for setting in SETTINGS:
        if FLAGS.only not in f"{setting.name.strip()}$":
            continue
        done = {found["seed"] for found in results() if found["name"] == setting.name}
        seeds = [seed for seed in range(1, FLAGS.seeds + 1) if seed not in done]
        if not seeds:
            continue
        print(setting.name, flush=True)
        run = json.dumps({**dataclasses.asdict(setting), "seeds": seeds})
        command = [sys.executable, __file__, "--results", FLAGS.results, "--run", run]
        subprocess.run(command, timeout=FLAGS.timeout, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"})
        for found in results():
            if found["name"] == setting.name and found["seed"] in seeds:
                seconds = found["curve"][-1][1]
                print(f"  seed {found['seed']}: {found['validation']:.3f} {found['test']:.3f}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    app.run(main)
