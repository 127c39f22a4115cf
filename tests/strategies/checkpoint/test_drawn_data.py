"""Data that draw random numbers while they are read have, after a restart, those that they would have had.

A thread reads them some batches ahead, so nobody knows what was drawn for the batches that are done.
"""

import random
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from backup_processes import Killed

pytestmark = pytest.mark.slow

X = np.random.default_rng(1).random((64, 3), "float32")
Y = X.sum(axis=1, keepdims=True)
DRAW = {"numpy": lambda: np.random.randint(0, 64, 8), "Python": lambda: [random.randrange(64) for _ in range(8)]}
OTHER = {"numpy": random.random, "Python": np.random.random}


class Batches:
    """Endless random batches. The thread of an earlier process draws nothing more after `stop`."""

    def __init__(self, draw):
        self._draw, self._lock, self._is_over = draw, threading.Lock(), False

    def __call__(self):
        while True:
            with self._lock:
                if self._is_over:
                    return
                rows = self._draw()
            yield X[rows], Y[rows]

    def stop(self):
        with self._lock:
            self._is_over = True


class Callback(keras.callbacks.Callback):
    """Draws from another generator than the data, and kills."""

    def __init__(self, draw, killed_after):
        super().__init__()
        self.draw, self.killed_after, self.steps = draw, killed_after, 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == self.killed_after:
            raise Killed

    def on_epoch_end(self, epoch, logs=None):
        logs["drawn"] = self.draw()


def dataset(batches):
    kinds = (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)))
    return tf.data.Dataset.from_generator(batches, output_signature=kinds).prefetch(3)


@pytest.mark.parametrize(("frequency", "killed_after"), [("epoch", 14), (2, 3), (2, 15)])
@pytest.mark.parametrize(
    ("kind", "data"), [("numpy", lambda batches: batches()), ("Python", lambda batches: batches()), ("numpy", dataset)]
)
def test_data_that_one_iterator_reads_go_on_from_what_they_have_drawn(process, kind, data, frequency, killed_after):
    def program(killed_after=99):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        batches = Batches(DRAW[kind])
        try:
            callback = Callback(OTHER[kind], killed_after)
            history = model.fit(data(batches), steps_per_epoch=6, epochs=4, verbose=0, callbacks=[callback])
        finally:
            batches.stop()
        return history.history, [weight.tolist() for weight in model.get_weights()]

    whole = process(program, frequency=frequency)
    assert process(lambda: program(killed_after), frequency=frequency) is None
    assert process(program, frequency=frequency) == whole
