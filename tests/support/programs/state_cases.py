"""What states.py and drawn_states.py share: data, and the results of a training."""

import keras
import numpy as np

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
