"""The program that time_to_accuracy.py runs: one task of one training of mnist1d.

    python benchmarks/time_to_accuracy_program.py RUN

RUN is JSON: `way`, `nodes`, `seed`, `units`, `steps` (of all workers), `rate`, and `file`, to which the task that counts writes
its curve: a list of (steps of all workers, seconds, test accuracy in percent). While it trains, `file` with the suffix
`.progress` holds the steps and seconds so far. TensorFlow is imported late, because Horovod's is another one, with Keras 2.
"""

import json
import os
import sys
import time
from pathlib import Path

from quality_data import CLASSES, FEATURES, LOCAL_BATCH, mnist1d

SYNCHRONOUS, MULTI_WORKER_MIRRORED, HOROVOD = "synchronous", "multi_worker_mirrored", "Horovod"
POINTS = 20


def network(keras, units):
    hidden = [keras.layers.Dense(units, activation="relu") for _ in range(2)]
    return keras.Sequential([keras.Input((FEATURES,)), *hidden, keras.layers.Dense(CLASSES)])


def compiled(keras, run, steps, wrap=lambda optimizer: optimizer):
    model = network(keras, run["units"])
    schedule = keras.optimizers.schedules.CosineDecay(run["rate"], steps)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(wrap(keras.optimizers.SGD(schedule, momentum=0.9)), loss, steps_per_execution=16)
    return model


def keeper(keras, run, steps, together):
    """Returns a callback that keeps (steps of all workers, seconds, weights) at times."""
    progress = Path(run["file"]).with_suffix(".progress")

    class Keeper(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.kept, self.begin, self.lost, self.written = [], None, 0.0, 0.0

        def on_train_batch_end(self, batch, logs=None):
            now = time.monotonic()
            if self.begin is None:
                self.begin, self.first = now, batch + 1
            elif (batch + 1) * POINTS // steps > len(self.kept) and batch + 1 < steps:
                self.kept.append(((batch + 1) * together, now - self.begin - self.lost, self.model.get_weights()))
                self.lost += time.monotonic() - now
            elif now > self.written + 1:
                self.written = now
                progress.write_text(f"{(batch + 1 - self.first) * together} {now - self.begin - self.lost}")

        def on_train_end(self, logs=None):
            self.kept.append((steps * together, time.monotonic() - self.begin - self.lost, self.model.get_weights()))

    return Keeper()


def batches(tf, seed, size):
    x, y = mnist1d()["train"]
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(y), seed=seed).repeat()
    return data.batch(size, drop_remainder=True)


def write_curve(keras, run, kept):
    plain, (x, y) = network(keras, run["units"]), mnist1d()["test"]
    curve = []
    for done, seconds, weights in kept:
        plain.set_weights(weights)
        accuracy = 100 * float((plain(x).numpy().argmax(-1) == y).mean())
        curve.append([done, round(seconds, 2), round(accuracy, 3)])
    part = Path(run["file"]).with_suffix(".part")
    part.write_text(json.dumps(run | {"curve": curve, "parameters": plain.count_params()}))
    part.rename(run["file"])


def train(run):
    """One process, or one task of a strategy that TF_CONFIG describes."""
    import keras
    import tensorflow as tf

    import tfdist

    strategy = tfdist.strategy() if run["way"] != SYNCHRONOUS else tf.distribute.get_strategy()
    keras.utils.set_random_seed(run["seed"])
    together = run["nodes"] if run["way"] in (SYNCHRONOUS, MULTI_WORKER_MIRRORED) else 1
    steps = run["steps"] // together
    with strategy.scope():
        model = compiled(keras, run, steps)
    kept = keeper(keras, run, steps, together)
    model.fit(batches(tf, run["seed"], LOCAL_BATCH * together), epochs=1, steps_per_epoch=steps, verbose=0, callbacks=[kept])
    if getattr(strategy, "tfdist_hooks", None) is None or strategy.tfdist_hooks.shows_progress:
        write_curve(keras, run, kept.kept)


def train_horovod(run):
    """Horovod's own recipe for Keras. Each rank shuffles the examples with a seed of its own."""
    from peers import join_horovod

    rank = join_horovod(Path(run["file"]).with_suffix(".port"), run["nodes"])
    import horovod.tensorflow.keras as hvd
    import tensorflow as tf

    hvd.init()
    keras = tf.keras
    keras.utils.set_random_seed(run["seed"])
    steps = run["steps"] // run["nodes"]
    model = compiled(keras, run, steps, hvd.DistributedOptimizer)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    kept = keeper(keras, run, steps, run["nodes"])
    if rank == 0:
        callbacks.append(kept)
    data = batches(tf, run["seed"] * 1000 + rank, LOCAL_BATCH)
    model.fit(data, epochs=1, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
    if rank == 0:
        write_curve(keras, run, kept.kept)
    else:
        time.sleep(3600)  # Until it is killed: if it ended now, the job would count as failed.


if __name__ == "__main__":
    what = json.loads(sys.argv[1])
    (train_horovod if what["way"] == HOROVOD else train)(what)
    sys.stdout.flush()
    os._exit(0)  # Horovod's own end may wait for ranks that sleep.
