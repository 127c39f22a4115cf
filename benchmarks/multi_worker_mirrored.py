"""Steps per second of `fit` under tfdist and of a hand-written loop under the same cluster of MultiWorkerMirroredStrategy.

    python benchmarks/multi_worker_mirrored.py

This starts itself as two processes of this machine. The sides run in turn, several times; it prints the median of each side and
of their ratios. The loop follows TensorFlow's guide to custom training and uses only TensorFlow's own code: its distributed
dataset, one compiled function per step, `optimizer.apply_gradients`, one reduction of the loss.
"""

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

STEPS, ROUNDS, BATCH = 200, 5, 128


def small_variables(keras: Any) -> Any:
    """160 variables: 80 layers of 16 units."""
    return keras.Sequential([keras.Input((16,)), *(keras.layers.Dense(16, activation="tanh") for _ in range(80))])


def perceptron(keras: Any) -> Any:
    """0.27 million parameters in 6 variables."""
    hidden = [keras.layers.Dense(256, activation="relu") for _ in range(2)]
    return keras.Sequential([keras.Input((784,)), *hidden, keras.layers.Dense(10)])


def main() -> None:
    """Runs as one task of the cluster; the first prints the table."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist

    strategy = tfdist.strategy()
    plain = tf.distribute.MultiWorkerMirroredStrategy
    rows = []
    for make in (small_variables, perceptron):
        with strategy.scope():
            model = make(keras)
            model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
            other = make(keras)
            optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
            optimizer.build(other.trainable_variables)
        x = np.random.rand(BATCH * STEPS, *model.input_shape[1:]).astype("float32")
        y = np.random.rand(BATCH * STEPS, *model.output_shape[1:]).astype("float32")
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True).prefetch(4)
        # TensorFlow's own distributed dataset, not tfdist's.
        distributed = plain.experimental_distribute_dataset(strategy, dataset)

        def step(batch: Any, other: Any = other, optimizer: Any = optimizer) -> Any:
            features, labels = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.reduce_mean(tf.square(other(features, training=True) - labels), axis=-1)) / BATCH
            gradients = tape.gradient(loss, other.trainable_variables)
            optimizer.apply_gradients(zip(gradients, other.trainable_variables, strict=True))
            return loss

        @tf.function
        def global_step(iterator: Any, step: Any = step) -> Any:
            return strategy.reduce("SUM", strategy.run(step, args=(next(iterator),)), axis=None)

        def loop(distributed: Any = distributed, global_step: Any = global_step) -> None:
            iterator = iter(distributed)
            for _ in range(STEPS):
                global_step(iterator)

        def fit(model: Any = model, dataset: Any = dataset) -> None:
            model.fit(dataset, epochs=1, verbose=0)

        fit_many = functools.partial(fit)
        rates: dict[str, list[float]] = {"loop": [], "fit": [], "fit, 20 steps per execution": []}
        for _ in range(ROUNDS + 1):  # The first compiles.
            for name, run in zip(rates, (loop, fit, fit_many), strict=True):
                model.steps_per_execution = 20 if run is fit_many else 1
                begin = time.perf_counter()
                run()
                rates[name].append(STEPS / (time.perf_counter() - begin))
        for name, seen in rates.items():
            ratio = statistics.median(a / b for a, b in zip(seen[1:], rates["loop"][1:], strict=True))
            rows.append(f"| {make.__doc__.rstrip('.')} | {name} | {statistics.median(seen[1:]):.0f} | {ratio:.2f} |")
    if strategy.tfdist_hooks.shows_progress:
        print("\n".join(["| model | | steps/s | of the loop's |", "|---|---|---|---|", *rows]), flush=True)


if __name__ == "__main__":
    if "TF_CONFIG" in os.environ:
        main()
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "two.conf")
            with open(path, "w", encoding="utf-8") as file:
                file.write("cluster { nworkers_per_group: 2 nworkers_per_procs: 1 }")
            command = [sys.executable, "-m", "tfdist.launch", "--cluster", path, "--log_dir", folder, os.path.abspath(__file__)]
            sys.exit(subprocess.run(command).returncode)
