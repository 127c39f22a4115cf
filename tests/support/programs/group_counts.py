"""What a layer counts under hogwild with one group of two replicas in a task, and in one process."""

import contextlib
import dataclasses
import json
from pathlib import Path

import keras
import numpy as np
from group_losses import ONE_GROUP
from keras import layers, ops

import tfdist

X = np.random.default_rng(0).normal(size=(13, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Counts(layers.Layer):
    """Counts its examples, up and down, and keeps their average."""

    def build(self, shape):
        self.rows, self.left = (self.add_weight(trainable=False, initializer="zeros", aggregation="sum") for _ in range(2))
        self.average = self.add_weight(trainable=False, initializer="zeros")

    def call(self, x):
        self.rows.assign_add(ops.cast(ops.shape(x)[0], "float32"))
        self.left.assign_sub(ops.cast(ops.shape(x)[0], "float32"))
        self.average.assign(0.9 * self.average + 0.1 * ops.mean(x))
        return x


def counted(scope):
    """Returns the values of the layer after each kind of call. The last batch has one example, and the second replica none."""
    keras.utils.set_random_seed(1)
    with scope():
        layer = Counts()
        model = keras.Sequential([keras.Input((4,)), layer, layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    values = []
    for call in (
        lambda: model.fit(X, Y, batch_size=4, shuffle=False, verbose=0),
        lambda: model.evaluate(X, Y, batch_size=4, verbose=0),
        lambda: model.predict(X, batch_size=4, verbose=0),
        lambda: model.train_on_batch(X[:3], Y[:3]),
        lambda: model.predict_on_batch(X[:3]),
    ):
        call()
        values += [float(each.numpy()) for each in (layer.rows, layer.left, layer.average)]
    return values


if __name__ == "__main__":
    strategy = tfdist.strategy(dataclasses.replace(tfdist.read(ONE_GROUP), strategy="hogwild"))
    results = {"group": counted(strategy.scope), "alone": counted(contextlib.nullcontext)}
    Path("results.json").write_text(json.dumps(results))
