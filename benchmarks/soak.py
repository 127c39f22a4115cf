"""Trains for minutes with calls and saves inside callbacks at irregular batches, and counts what was trained.

    python benchmarks/soak.py 600 --strategy hogwild

A program calls `fit` again and again, with other batch sizes and numbers of epochs. Every 1 to 40 batches a callback calls
`evaluate`, `predict`, `test_on_batch`, `save` or `save_weights`. After each `fit` the batches that callbacks saw,
`optimizer.iterations`, the length of the history, and the examples that a metric counted in each epoch must be exact: every
example once per epoch. The first difference ends the program with exit code 1.
"""

import dataclasses
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_enum("strategy", "hogwild", ("hogwild", "parameter_server"), "Strategy, with 2 workers and 1 ps.")
flags.DEFINE_integer("seed", 1, "Seed of the moments and of the calls.")

EXAMPLES, BATCH_SIZES, EPOCHS, GAP, PERIOD = 1000, (7, 16, 40), (1, 2, 3), 40, 4


def processes():
    """Returns {process id: (MB of resident memory, threads)} of this process and those that it started."""
    found, parents = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        except OSError:  # It has ended.
            continue
        parents[int(folder.name)] = int(lines["PPid"])
        found[int(folder.name)] = (int(lines.get("VmRSS", "0 kB").split()[0]) // 1024, int(lines["Threads"]))
    mine = [int(Path("/proc/self").resolve().name)]
    for pid in mine:
        mine += [child for child, parent in parents.items() if parent == pid]
    return {pid: found[pid] for pid in mine}


def soak(strategy, seconds, seed, folder):
    """Trains for `seconds`, and returns what was counted.

    Raises:
        AssertionError: for the first count that is wrong.
    """
    import keras
    import numpy as np
    from seen import Seen

    ids = np.arange(EXAMPLES, dtype="float32")
    x = np.stack([ids / EXAMPLES, np.sin(ids), np.cos(ids)], axis=1).astype("float32")
    y = np.stack([x.sum(axis=1), ids], axis=1)
    expected = {"examples": EXAMPLES, "numbers": EXAMPLES * (EXAMPLES - 1) / 2}
    chance, totals = random.Random(seed), Counter()

    def loss(y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true[:, :1] - y_pred), axis=-1)

    def evaluate(model):
        found = model.evaluate(x, y, batch_size=64, verbose=0, return_dict=True)
        assert {name: found[name] for name in expected} == expected, f"evaluate counted {found}"

    def predict(model):
        found = model.predict(x[: chance.randint(1, 99)], batch_size=8, verbose=0)
        assert np.isfinite(found).all()

    def save(model):
        model.save(folder / "model.keras")
        loaded = keras.saving.load_model(folder / "model.keras", compile=False)
        assert np.isfinite(loaded(x[:2]).numpy()).all()

    calls = {
        "evaluate": evaluate,
        "predict": predict,
        "test_on_batch": lambda model: model.test_on_batch(x[:8], y[:8]),
        "save": save,
        "save_weights": lambda model: model.save_weights(folder / "model.weights.h5"),
    }

    class Calls(keras.callbacks.Callback):
        batches = 0
        until = chance.randint(1, GAP)

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1
            self.until -= 1
            if self.until == 0:
                self.until = chance.randint(1, GAP)
                name = chance.choice(list(calls))
                calls[name](self.model)
                totals[name] += 1

    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.001), loss, metrics=[Seen()])
    end, first = time.monotonic() + seconds, None
    while time.monotonic() < end:
        batch_size, epochs, callback = chance.choice(BATCH_SIZES), chance.choice(EPOCHS), Calls()
        record = model.fit(x, y, batch_size=batch_size, epochs=epochs, verbose=0, callbacks=[callback]).history
        totals["fits"] += 1
        totals["epochs"] += epochs
        totals["batches"] += epochs * math.ceil(EXAMPLES / batch_size)
        where = f"fit {totals['fits']} (batch size {batch_size}, {epochs} epochs, {callback.batches} batches seen)"
        assert callback.batches == epochs * math.ceil(EXAMPLES / batch_size), where
        iterations = int(model.optimizer.iterations.numpy())
        assert iterations == totals["batches"], f"{where}: {iterations} iterations, not {totals['batches']}"
        counted = {name: record[name] for name in expected}
        assert counted == {name: [value] * epochs for name, value in expected.items()}, f"{where}: counted {counted}"
        assert len(record["loss"]) == epochs and np.isfinite(record["loss"]).all(), f"{where}: losses {record['loss']}"
        first = first or (record["loss"][0], processes())
    last = processes()
    resources = {pid: {"MB": (first[1][pid][0], last[pid][0]), "threads": (first[1][pid][1], last[pid][1])}
                 for pid in last.keys() & first[1].keys()}  # fmt: skip
    return {**totals, "loss": (first[0], record["loss"][-1]), "processes": resources}


def main(arguments):
    import tfdist

    seconds = float(arguments[1]) if len(arguments) > 1 else 600.0
    cluster = dataclasses.replace(tfdist.read({"chief": 1, "worker": 2, "ps": 1}), strategy=FLAGS.strategy)
    if FLAGS.strategy == "hogwild":
        cluster = dataclasses.replace(cluster, sync_period=PERIOD)
    strategy = tfdist.strategy(cluster)
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(json.dumps({"strategy": FLAGS.strategy, **soak(strategy, seconds, FLAGS.seed, Path(folder))}, indent=1))
        except AssertionError as error:
            sys.exit(f"soak: {FLAGS.strategy}: {error}")


if __name__ == "__main__":
    app.run(main)
