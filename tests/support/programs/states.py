"""Trains on two replicas and in one process what a step keeps: writes the results of both to states.json, by case."""

import contextlib
import json
import sys

import keras
import numpy as np
from keras import ops

import tfdist
from tfdist.cluster import Cluster, Task

N = 50
X = np.random.default_rng(3).normal(size=(N, 4)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5], [3.0]], "float32") + 1
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def trained(scope, layers, size=7, epochs=2, **compiled):
    """Trains layers before a Dense layer; returns losses and weights, and how much the values of the replicas differ."""
    with scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), *layers(), keras.layers.Dense(1)])
        model.compile(**{"optimizer": keras.optimizers.SGD(0.02), "loss": "mse", **compiled})
    losses = model.fit(X, Y, batch_size=size, epochs=epochs, shuffle=False, verbose=0).history["loss"]
    return results_of(model, losses)


def results_of(model, losses):
    replicas = [[value.numpy() for value in getattr(v.value, "values", [v.value])] for v in model.variables]
    differences = max(float(abs(value - values[0]).max()) for values in replicas for value in values)
    return {"losses": losses, "weights": [w.ravel().tolist() for w in model.get_weights()], "differences": differences}


class Centers(keras.layers.Layer):
    """Subtracts the moving average of earlier batches."""

    def __init__(self, **arguments):
        super().__init__()
        self.arguments = arguments

    def build(self, shape):
        self.center = self.add_weight(shape=(shape[-1],), initializer="zeros", name="center", **self.arguments)

    def call(self, x, training=False):
        centered = x - self.center
        if training:
            self.center.assign(0.9 * self.center + 0.1 * ops.mean(x, axis=0))
        return centered


@case
def averages_that_the_next_step_of_an_execution_reads(scope):
    return trained(scope, lambda: [Centers(trainable=False)], steps_per_execution=4)


def main():
    scope = tfdist.strategy(Cluster((Task("chief", 0, slots=2),))).scope
    names = sys.argv[1:] or CASES
    results = {name: {"one": CASES[name](contextlib.nullcontext), "ours": CASES[name](scope)} for name in names}
    with open("states.json", "w") as file:
        json.dump(results, file)


main()
