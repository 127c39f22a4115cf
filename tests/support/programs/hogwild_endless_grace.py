"""Trains with groups that wait for each other without end: `hogwild_endless_grace.py DOES WORKERS PERIOD FRAGMENTS DELAY`."""

import sys

import keras
import numpy as np
import own_cluster
import tensorflow as tf

import tfdist

does, (workers, period, fragments, delay) = sys.argv[1], map(int, sys.argv[2:])
synchronization = {"fragments": fragments, "delay": delay, "grace": 1e9}
own_cluster.serve({"strategy": "hogwild", "sync_period": period, "synchronization": synchronization}, worker=workers, ps=1)
with tfdist.strategy().scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
x = np.random.default_rng(1).normal(size=(72, 4))
y = x.sum(1)


class Do(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if does == "stops" and batch >= 2:
            self.model.stop_training = True
        if does == "evaluates" and batch % 3 == 1:
            self.model.evaluate(x, y, batch_size=8, verbose=0)


specs = tf.TensorSpec([None, 4], tf.float64), tf.TensorSpec([None], tf.float64)
batches = tf.data.Dataset.from_generator(
    lambda: ((x[i : i + 8], y[i : i + 8]) for i in range(0, 72, 8)), output_signature=specs
)
fits, epochs = {"nothing more": (1, 40), "evaluates": (1, 40)}.get(does, (8, 2))
losses = []
for _ in range(fits):
    if does == "fits one batch":
        model.get_weights()  # So only the group that trains next has progress.
        model.fit(x[:8], y[:8], batch_size=8, verbose=0)
    if does == "fits two batches":
        model.fit(x[:16], y[:16], batch_size=8, epochs=2, verbose=0)
        model.fit(batches, epochs=3, verbose=0)
    losses += model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[Do()]).history["loss"]
print("FOUND", losses[-1] < losses[0], flush=True)
