"""Trains deterministically, and writes the results to a file: `hogwild.py RESULTS [SERVERS]`.

With so many ps in a cluster of one worker, else in one process.
"""

import json
import sys

import keras
import numpy as np
import own_cluster
import tensorflow as tf

import tfdist

generator = np.random.default_rng(5)
X = generator.normal(size=(250, 5)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32") + (X[:, 0] > 1)


def values(variables):
    return [variable.numpy().tolist() for variable in variables if "seed" not in variable.path]


def one_optimizer(strategy):
    """Trains, by `fit` and `train_on_batch`, with everything that depends on the order of steps."""
    with strategy.scope():
        keras.utils.set_random_seed(11)
        layers = [
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(3),
        ]
        model = keras.Sequential([keras.Input((5,)), *layers])
        rate = keras.optimizers.schedules.ExponentialDecay(0.05, 10, 0.8)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, metrics=["accuracy"], jit_compile=False)
    held = (X[200:], Y[200:])
    # 13 batches, the last smaller than the others: three synchronizations and one batch more in each epoch.
    history = model.fit(X[:200], Y[:200], batch_size=16, epochs=3, shuffle=False, validation_data=held, verbose=0).history
    return {
        "history": history,
        "batches": [model.train_on_batch(X[:50], Y[:50]) for _ in range(6)],
        "weights": values(model.weights),
        "slots": values(model.optimizer.variables),
        "predictions": model.predict(X, verbose=0).tolist(),
    }


def long_epochs(strategy):
    """Epochs of 125 batches, which no callback follows: a group gets several periods with a call, then one, then one batch."""
    with strategy.scope():
        keras.utils.set_random_seed(11)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
        rate = keras.optimizers.schedules.ExponentialDecay(0.05, 100, 0.5)
        model.compile(keras.optimizers.SGD(rate, momentum=0.9), "mse", metrics=["mae"], jit_compile=False)
    history = model.fit(X, X[:, :1], batch_size=2, epochs=2, shuffle=False, verbose=0).history
    iterations = int(model.optimizer.iterations.numpy())
    return {"history": history, "weights": values(model.weights), "iterations": iterations}


def frozen_without_compile(strategy):
    """A layer that a callback freezes after an epoch, whose calls had fewer steps because its length was not known."""
    with strategy.scope():
        keras.utils.set_random_seed(11)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=False)

    def batches():
        yield from zip(np.split(X, 125), np.split(X[:, :1], 125), strict=True)

    data = tf.data.Dataset.from_generator(batches, output_signature=(tf.TensorSpec([None, 5]), tf.TensorSpec([None, 1])))
    freeze = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(model.layers[0], "trainable", False))
    model.fit(data, epochs=3, verbose=0, callbacks=[freeze])
    return values(model.weights)


def changed_after_each_batch(strategy):
    """The updates that a callback sees after each batch, and the weights, to which it adds nothing."""
    with strategy.scope():
        keras.utils.set_random_seed(11)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", jit_compile=False, steps_per_execution=3)
    seen = []

    class Add(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(int(self.model.optimizer.iterations))
            for variable in self.model.trainable_variables:
                variable.assign_add(keras.ops.zeros_like(variable))

    model.fit(X, X[:, :1], batch_size=10, epochs=2, shuffle=False, verbose=0, callbacks=[Add()])
    return {"seen": seen, "weights": values(model.weights)}


class TwoOptimizers(keras.Model):
    """The first optimizer makes two updates per step, the second one, and the compiled optimizer none."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
        rate = keras.optimizers.schedules.ExponentialDecay(0.05, 10, 0.5)
        self.first, self.second = keras.optimizers.Adam(rate), keras.optimizers.SGD(0.01, momentum=0.5)

    def call(self, x):
        return self.parts[1](self.parts[0](x))

    def train_step(self, data):
        x, y = data
        for optimizer, part in ((self.first, 0), (self.first, 0), (self.second, 1)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            variables = self.parts[part].trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def two_optimizers(strategy):
    with strategy.scope():
        keras.utils.set_random_seed(11)
        model = TwoOptimizers()
        before = model.predict(X, verbose=0).tolist()  # Not compiled yet.
        model.compile(jit_compile=False)
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    losses, data = [], {"batch_size": 25, "shuffle": False, "verbose": 0}
    model.fit(X, X[:, :1], epochs=2, callbacks=[seen], **data)
    optimizers = model.first, model.second
    return {
        "before": before,
        "losses": losses,
        "iterations": [int(optimizer.iterations.numpy()) for optimizer in optimizers],
        "slots": [values(optimizer.variables) for optimizer in optimizers],
        "weights": values(model.weights),
    }


if len(sys.argv) > 2:
    own_cluster.serve({"strategy": "hogwild", "sync_period": 4}, worker=1, ps=int(sys.argv[2]))
strategy = tfdist.strategy()
CASES = one_optimizer, long_epochs, frozen_without_compile, changed_after_each_batch, two_optimizers
results = {case.__name__: case(strategy) for case in CASES}
with open(sys.argv[1], "w") as file:
    json.dump(results | {"strategy": type(strategy).__name__}, file, default=float)
