"""Draws random numbers on the replicas of a cluster, and trains models whose user has put @tf.function on a method.

`own_numbers.py CASE ...` writes the results to own_numbers.json.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import tfdist

STEPS = 40
X = np.random.default_rng(0).normal(3, 2, (24, 4)).astype("float32")


class Noise(keras.layers.Layer):
    """Returns noise in place of each example: with a seed, and without one."""

    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, x):
        shape = ops.shape(x)
        return (
            ops.concatenate([keras.random.normal(shape, seed=self.seed_generator), keras.random.normal(shape)], axis=1) + 0 * x
        )


class NoiseInFunction(Noise):
    @tf.function
    def call(self, x):
        return keras.random.normal(ops.shape(x), seed=self.seed_generator) + 0 * x


class InFunction(keras.Model):
    """Its layers have a state that a step changes."""

    def __init__(self):
        super().__init__()
        self.normalize, self.drop = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=5)
        self.dense = keras.layers.Dense(1)

    @tf.function
    def call(self, x, training=False):
        return self.dense(self.drop(self.normalize(x, training=training), training=training))


class StepInFunction(keras.Model):
    """Its step has a Python condition on a tensor, which AutoGraph converts."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="zeros")

    def call(self, x):
        return self.dense(x)

    @tf.function
    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self(x) - x[:, :1]))
            if loss > 1e6:
                loss = loss * 0
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def values(variable):
    """Returns the value that each replica of this task has."""
    return [np.asarray(each).tolist() for each in strategy.experimental_local_results(variable._value)]


def drawn(layer_of, batch):
    """Returns what is drawn for each of many batches, and the states of the generator afterwards."""
    with strategy.scope():
        inputs, layer = keras.Input((1,)), layer_of()
        model = keras.Model(inputs, layer(inputs))
    noise = model.predict(np.zeros((STEPS * batch, 1), "float32"), batch_size=batch, verbose=0)
    return noise.tolist(), values(layer.seed_generator.state)


def masks():
    """Returns the sum of two examples' masks in each of two steps, and the states of the seed."""
    with strategy.scope():
        drop = keras.layers.Dropout(0.5, seed=1)
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((64,)), drop, dense])
        model.compile(keras.optimizers.SGD(1.0), lambda y, p: -ops.sum(p, axis=-1))
    sums = []
    for _ in range(2):
        before = dense.get_weights()[0]
        model.fit(np.ones((2, 64), "float32"), np.zeros((2, 1)), batch_size=2, verbose=0)
        sums.append((dense.get_weights()[0] - before).ravel().tolist())
    return sums, values(drop.seed_generator.state)


def trained(model, *y):
    with strategy.scope():
        model = model()
        model.compile(keras.optimizers.SGD(0.01), "mse" if y else None)
    model.build((None, 4))
    model.fit(X, *y, batch_size=8, verbose=0, shuffle=False)
    return model


def in_a_function():
    model = trained(InFunction, X[:, :1])
    return {"moving mean": model.normalize.moving_mean.numpy().tolist(), "steps": values(model.drop.seed_generator.state)}


strategy = tfdist.strategy()
CASES = {
    "two": lambda: drawn(Noise, 2),
    "one": lambda: drawn(Noise, 1),
    "numbers in a function": lambda: drawn(NoiseInFunction, 2 if strategy.num_replicas_in_sync > 1 else 1),
    "masks": masks,
    "layers in a function": in_a_function,
    "step in a function": lambda: trained(StepInFunction).dense.get_weights()[0].ravel().tolist(),
}
results = {name: CASES[name]() for name in sys.argv[1:]}
results["replicas"] = strategy.num_replicas_in_sync
if tfdist.is_chief():
    with open("own_numbers.json", "w") as file:
        json.dump(results, file)
