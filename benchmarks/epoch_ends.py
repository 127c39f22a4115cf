"""How long training pauses between two epochs, with TensorFlow alone and with tfdist.

    python benchmarks/epoch_ends.py

A pause is the time from the end of an epoch's last batch to the beginning of the next epoch's first, without the first pause,
in which functions may be traced. See tfdist/strategies/inputs/iterator_release.py.
"""

import dataclasses
import json
import statistics
import subprocess
import sys
import time

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 61, "Epochs of each row, the first included.")
flags.DEFINE_integer("batches", 400, "Batches of an epoch.")
flags.DEFINE_string("row", None, "Runs this row alone, in this process, and prints its figures as JSON.")


def _mirrored_of_tensorflow():
    import tensorflow as tf

    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def _alone():
    import tensorflow as tf

    return tf.distribute.get_strategy()


def _tfdist(description, strategy=None):
    import tfdist

    return tfdist.strategy(dataclasses.replace(tfdist.read(description), strategy=strategy, sync_period=16))


def _mirrored():
    import tfdist

    return tfdist.strategy(tfdist.Cluster((tfdist.Task("worker", 0, slots=2),)))


ROWS = {
    "Keras, one process": _alone,
    "tfdist, one process": lambda: _tfdist({"chief": 1}),
    "TensorFlow's MirroredStrategy, 2 devices": _mirrored_of_tensorflow,
    "tfdist `mirrored`, 2 devices": _mirrored,
    "tfdist `parameter_server`, 1 ps, 2 workers": lambda: _tfdist({"chief": 1, "worker": 2, "ps": 1}),
    "tfdist `hogwild`, 1 ps, 2 workers, period 16": lambda: _tfdist({"chief": 1, "worker": 2, "ps": 1}, strategy="hogwild"),
}
"""Name -> a function that makes the strategy."""


def _measured(row):
    strategy = ROWS[row]()
    import keras
    import numpy as np

    pauses, epochs, ended = [], [], []

    class Times(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 0:
                if ended:
                    pauses.append(time.monotonic() - ended[-1])
                self.begun = time.monotonic()

        def on_train_batch_end(self, batch, logs=None):
            if batch == FLAGS.batches - 1:
                ended.append(time.monotonic())
                epochs.append(ended[-1] - self.begun)

    with strategy.scope():
        hidden = [keras.layers.Dense(256, activation="relu") for _ in range(2)]
        model = keras.Sequential([keras.Input((784,)), *hidden, keras.layers.Dense(10)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.random.default_rng(1).normal(size=(32 * FLAGS.batches, 784)).astype("float32")
    model.fit(x, x[:, :10], batch_size=32, epochs=FLAGS.epochs, verbose=0, callbacks=[Times()])
    pauses, epochs = pauses[1:], epochs[1:]
    median, longest = statistics.median(pauses), max(pauses)
    return {"epoch": statistics.median(epochs), "median": median, "longest": longest, "mean": statistics.mean(pauses),
            "part": sum(pauses) / (sum(epochs) + sum(pauses))}  # fmt: skip


def main(_):
    if FLAGS.row:
        print(json.dumps(_measured(FLAGS.row)))
        return
    print("| | epoch | median pause | mean pause | longest pause | of the time |\n|---|---|---|---|---|---|", flush=True)
    for row in ROWS:
        command = [sys.executable, __file__, f"--row={row}", f"--epochs={FLAGS.epochs}", f"--batches={FLAGS.batches}"]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        found = json.loads(output.splitlines()[-1])
        times = " | ".join(f"{1000 * found[name]:.0f} ms" for name in ("median", "mean", "longest"))
        print(f"| {row} | {found['epoch']:.2f} s | {times} | {100 * found['part']:.1f} % |", flush=True)


if __name__ == "__main__":
    app.run(main)
