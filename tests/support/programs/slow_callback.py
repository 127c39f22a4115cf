"""Callbacks that take longer than a group may, for nested_calls.py."""

import time

import keras
import numpy as np
from keras import ops

from tfdist.strategies.coordinator.calls import executions

BATCHES, SIZE, EPOCHS = 24, 4, 2
IDS = np.arange(1, BATCHES * SIZE + 1, dtype="float32").reshape(-1, 1)


class Seen(keras.metrics.Metric):
    """The sum of the numbers of the examples that the workers have trained on."""

    def __init__(self):
        super().__init__(name="seen")
        self.total = self.add_weight(name="total", initializer="zeros", dtype="float64")

    def update_state(self, y_true, y_pred, sample_weight=None):
        del y_pred, sample_weight
        self.total.assign_add(ops.sum(ops.cast(y_true, "float64")))

    def result(self):
        return self.total


class Sleeps(keras.callbacks.Callback):
    """Takes a while in the middle of an epoch, and at its end."""

    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if batch in (3, BATCHES - 3):
            time.sleep(1.5)

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(1.0)


def trained(strategy):
    """Returns what the groups have trained on."""
    executions.POLL_SECONDS = 0.1
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(1e-6), "mse", metrics=[Seen()])
    model.fit(IDS, IDS, batch_size=SIZE, verbose=0)  # Traces. Its steps may be slow.
    sleeps = Sleeps()
    history = model.fit(IDS, IDS, batch_size=SIZE, epochs=EPOCHS, shuffle=True, verbose=0, callbacks=[sleeps]).history
    return {
        "batches": sleeps.batches,
        "iterations": int(model.optimizer.iterations.numpy()) - BATCHES,
        "seen": history["seen"],
        "expected": float(IDS.sum()),
    }
