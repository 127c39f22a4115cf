"""Trains models whose gradient is 1 for each weight, and writes what asynchronous worker groups made of it.

asynchronous_counters.py RESULTS
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist

RATE = 0.25  # With powers of 2 all sums are exact.

strategy = tfdist.strategy()


def trained(optimizer_of, steps, layers, x, steps_per_execution=1):
    """Returns a model after `steps` steps with the mean of its outputs as its loss."""
    with strategy.scope():
        model = keras.Sequential([keras.Input(x.shape[1:], dtype=x.dtype), *layers])
        model.compile(optimizer_of(), lambda y, p: keras.ops.mean(p, axis=-1), steps_per_execution=steps_per_execution)
    model.fit(tf.data.Dataset.from_tensors((x, np.zeros((2, 1), "float32"))).repeat(steps), verbose=0)
    return model


def accumulated(steps, layers, x, steps_per_execution=1):
    """Returns the smallest and the largest sum of all gradients of a weight: in the weight, and still in its accumulator."""
    optimizer_of = lambda: keras.optimizers.SGD(RATE, gradient_accumulation_steps=4)  # noqa: E731
    model, sums = trained(optimizer_of, steps, layers, x, steps_per_execution), []
    for variable, left in zip(model.trainable_variables, model.optimizer._accumulated_gradients, strict=True):
        sums.append((np.asarray(left) - np.asarray(variable) / RATE * 4).reshape(-1))
    assert int(np.asarray(model.optimizer._iterations)) == steps
    return [float(np.concatenate(sums).min()), float(np.concatenate(sums).max())]


def dense():
    return keras.layers.Dense(1, kernel_initializer="zeros")


def loss_scale():
    """Returns the loss scale, which doubles after each 50 steps with finite gradients, and the steps since."""
    optimizer_of = lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE), 1.0, 50)  # noqa: E731
    optimizer = trained(optimizer_of, 200, [dense()], np.ones((2, 4), "float32")).optimizer
    return [float(np.asarray(optimizer.dynamic_scale)), int(np.asarray(optimizer.step_counter))]


def constrained(steps, x):
    """Returns the smallest and the largest number of updates that are in a weight, of which a constraint changes nothing."""
    layer = keras.layers.Dense(
        1, use_bias=False, kernel_initializer="zeros", kernel_constraint=lambda w: keras.ops.minimum(w, 1.0)
    )
    trained(lambda: keras.optimizers.SGD(RATE), steps, [layer], x)
    updates = -layer.get_weights()[0] / RATE
    return [float(updates.min()), float(updates.max())]


few, many = np.ones((2, 4), "float32"), np.ones((2, 140_000), "float32")
table = keras.layers.Embedding(2, 1, embeddings_initializer="zeros")
results = {
    "small": accumulated(200, [dense()], few),
    "several steps per execution": accumulated(200, [dense()], few, 5),
    "sharded": accumulated(24, [dense()], many),
    "rows": accumulated(24, [table, keras.layers.Flatten()], np.array([[0], [1]], "int32")),
    "loss scale": loss_scale(),
    "constrained": constrained(200, few),
    "constrained and sharded": constrained(24, many),
}
with open(sys.argv[1], "w") as file:
    json.dump(results, file)
