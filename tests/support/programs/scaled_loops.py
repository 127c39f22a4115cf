"""Loops of the user's own that scale the loss, on the chief. `STRATEGY`: argument 1."""

import contextlib
import sys

import keras
import numpy as np
import own_cluster
import tensorflow as tf

import tfdist

own_cluster.serve({"strategy": sys.argv[1]}, worker=2, ps=1)
strategy = tfdist.strategy()
X = np.arange(12.0, dtype="float32").reshape(4, 3) / 12


def trained(optimizer, scope, decorate):
    """Returns what three steps leave: the weights, and the count of steps. The second step has a gradient of infinity."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)])
        optimizer.build(model.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean(model(x)))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    with scope():
        step = decorate(step)
        for x in (X, np.full_like(X, np.inf), X):
            step(tf.constant(x))
    return model.get_weights()[0].ravel(), int(optimizer.iterations), float(optimizer.dynamic_scale)


for where in (contextlib.nullcontext, strategy.scope):
    for how in (tf.function, lambda function: function):
        with strategy.scope():
            scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=8.0)
        weights, count, scale = trained(scaling, where, how)
        np.testing.assert_allclose(weights, 1 - 2 * 0.5 * X.mean(axis=0), rtol=1e-6)
        assert (count, scale) == (2, 4.0), (count, scale)
print("fine")
