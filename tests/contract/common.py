"""What the cases share: numbered examples, tiny models, and the registry of the cases."""

import functools

import keras
import numpy as np

CASES = {}


class _Beginning:
    """Whether the numbers before training are compared, too: in rows that a column tests that lags behind one process."""

    is_compared = True


beginning = _Beginning()

RATE = 0.005  # So small that a gradient changes little within a few steps.
N = 250  # Not divisible by the batch size.
IDS = np.arange(N, dtype="float32")
X = np.stack([IDS / N, np.sin(IDS), np.cos(IDS), np.ones(N)], axis=1).astype("float32")
Y = (2 * X[:, :1] - X[:, 1:2]).astype("float32")
LABELS = (np.sin(IDS) > 0).astype("int32")
NUMBERED = np.concatenate([Y, IDS[:, None]], axis=1)  # A target and the number of its example.


def case(*rows):
    """Registers the function that returns the result of a row, or a dict with the results of several rows by name."""

    def declare(function):
        CASES[rows] = function
        return function

    return declare


@keras.saving.register_keras_serializable()
class Seen(keras.metrics.Metric):
    """Sums over the examples that it has seen: their count, their numbers, the squares of their numbers."""

    def __init__(self, name="seen", **kwargs):
        super().__init__(name=name, **kwargs)
        self.total = self.add_variable(shape=(3,), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        ids = keras.ops.round(keras.ops.cast(y_true[:, -1], "float32"))
        sums = [keras.ops.sum(keras.ops.ones_like(ids)), keras.ops.sum(ids), keras.ops.sum(ids * ids)]
        self.total.assign(self.total + keras.ops.stack(sums))

    def result(self):
        return {"count": self.total[0], "ids": self.total[1], "squares": self.total[2]}


@keras.saving.register_keras_serializable()
def loss_without_number(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true[:, :1] - y_pred), axis=-1)


def compiled(strategy, build, optimizer, loss, metrics=(), **arguments):
    """Returns a model that is made and compiled inside the scope. `build`, `optimizer` and `metrics` may be functions."""
    with strategy.scope():
        keras.utils.set_random_seed(3)
        model = build()
        made = [metric() if isinstance(metric, type) else metric for metric in metrics]
        model.compile(optimizer() if callable(optimizer) else optimizer, loss, metrics=made, **arguments)
    return model


def two_layers():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])


def regression(strategy, optimizer=lambda: keras.optimizers.SGD(RATE), **arguments):
    return compiled(strategy, two_layers, optimizer, "mse", ["mae"], **arguments)


@functools.lru_cache
def _kept(strategy, kind):
    if kind == "counting":
        model = compiled(strategy, two_layers, lambda: keras.optimizers.SGD(RATE), loss_without_number, [Seen])
    else:
        model = regression(strategy)
    return model, model.get_weights()


def counting(strategy):
    """Returns a model that counts its examples, in its initial state. It is compiled once for all cases."""
    model, weights = _kept(strategy, "counting")
    return as_new(model, weights)


def plain(strategy):
    """Returns such a model with mse and mae."""
    model, weights = _kept(strategy, "plain")
    return as_new(model, weights)


def as_new(model, weights):
    keras.utils.set_random_seed(3)
    model.set_weights(weights)
    model.optimizer.learning_rate = RATE
    model.optimizer.iterations.assign(0)
    model.stop_training = False
    return model


def fit(model, *args, **kwargs):
    """Fits without a shuffle and returns the history as numbers."""
    kwargs = {"verbose": 0, "shuffle": False} | kwargs
    if beginning.is_compared and not is_distributed(model.distribute_strategy) and len(args) == 2:
        model.before = before(model, args, kwargs)
    record = model.fit(*args, **kwargs).history
    return {name: np.asarray(values, "float64").tolist() for name, values in record.items()}


def before(model, data, arguments):
    """Returns the losses and metrics before training, under the names of the history. Every column starts with them."""
    sets = {"": data, "val_": arguments.get("validation_data")}
    if part := arguments.get("validation_split"):
        count = int(len(data[0]) * (1 - part))
        sets = {"": [each[:count] for each in data], "val_": [each[count:] for each in data]}
    got = {prefix: model.evaluate(*each, verbose=0, return_dict=True) for prefix, each in sets.items() if each}
    return {prefix + name: np.asarray(v).tolist() for prefix, values in got.items() for name, v in values.items()}


def steps(model):
    return int(model.optimizer.iterations.numpy())


def check_seen(history, epochs, prefix="", ids=IDS):
    """Raises AssertionError if an epoch has not seen each example exactly once."""
    expected = {"count": len(ids), "ids": ids.sum(dtype="float64"), "squares": (ids.astype("float64") ** 2).sum()}
    for name, value in expected.items():
        assert history[prefix + name] == [value] * epochs, (
            f"{prefix}{name}: {history[prefix + name]}, not {epochs} times {value}"
        )


def once(model, history, epochs, **seen):
    """Returns the result of a case that must see each example once per epoch."""
    check_seen(history, epochs, **seen)
    exact = {"steps": steps(model), "epochs": len(history["loss"])}
    return {"exact": exact, "near": {"loss": history["loss"]}, "before": getattr(model, "before", {})}


def trained(model, history):
    """Returns the result of a case whose history is compared."""
    exact = {"steps": steps(model), "names": sorted(history)}
    return {"exact": exact, "near": history, "before": getattr(model, "before", {})}


def part_of(result, *names):
    """Returns the result of a row of several that are trained in one model, given the names of its series."""
    return result | {field: {name: result[field].get(name) for name in names} for field in ("near", "before")}


def error_of(function):
    """Returns the type and text of the error that `function` raises; "no error" if it raises none."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def is_distributed(strategy):
    """Returns whether it is a strategy with a scope: any but TensorFlow's default strategy."""
    return strategy.extended.__class__.__name__ != "_DefaultDistributionExtended"
