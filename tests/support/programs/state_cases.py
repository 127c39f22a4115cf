"""What states.py and drawn_states.py share: data, and the results of a training."""

import keras
import numpy as np
from cases import NamedCases

N, BATCH = 50, 9  # Two replicas cannot share a batch evenly. With batches of 7 the last has one example.
LARGE = 17  # So are there few steps, where each takes long.
X = np.random.default_rng(3).normal(size=(N, 4)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5], [3.0]], "float32") + 1
case = CASES = NamedCases()
NAMES = {}


def cases(*names):
    """Marks a function that returns the results of several cases, by name."""

    def named(function):
        NAMES[function.__name__] = names
        return case(function)

    return named


def trained(scope, layers, size=BATCH, epochs=2, **compiled):
    """Trains layers before a Dense layer; returns losses and weights, and how much the values of the replicas differ."""
    with scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), *layers(), keras.layers.Dense(1)])
        model.compile(**{"optimizer": keras.optimizers.SGD(0.02), "loss": "mse", **compiled})
    losses = model.fit(X, Y, batch_size=size, epochs=epochs, shuffle=False, verbose=0).history["loss"]
    return results_of(model, losses)


def side_by_side(scope, layers, size, **compiled):
    """Trains layers side by side, each before a Dense layer of its own, in one model, because a model takes seconds to trace.

    Args:
        scope: the scope to train under.
        layers: name -> layers.
        size: of batches.
        compiled: arguments of `compile`.

    Returns:
        By name, a model with the layers and their losses.
    """
    with scope():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4,))
        models = {
            name: keras.Sequential([keras.Input((4,)), *own, keras.layers.Dense(1)], name=name)
            for name, own in layers().items()
        }
        model = keras.Model(inputs, {name: own(inputs) for name, own in models.items()})
        model.compile(keras.optimizers.SGD(0.02), "mse", **compiled)
    targets = dict.fromkeys(models, Y)
    history = model.fit(X, targets, batch_size=size, epochs=2, shuffle=False, verbose=0).history
    return {name: (own, history[f"{name}_loss"]) for name, own in models.items()}


def results_of(model, losses):
    replicas = [[value.numpy() for value in getattr(v.value, "values", [v.value])] for v in model.variables]
    differences = max(float(abs(value - values[0]).max()) for values in replicas for value in values)
    return {"losses": losses, "weights": [w.ravel().tolist() for w in model.get_weights()], "differences": differences}


def of_first_and_last(layer):
    """Returns the values that the first and the last replica have of each variable of a layer."""
    values = [getattr(v.value, "values", [v.value]) for v in layer.variables]
    return [[float(value) for value in (each[0], each[-1])] for each in values]
