"""`nested_calls.py STRATEGY`: slow callbacks, and calls inside `fit`; results.json has what they saw."""

import contextlib
import dataclasses
import json
import sys
import threading
import time

import keras
import numpy as np
import slow_callback
import tensorflow as tf

import tfdist

BATCHES, EPOCHS, INSIDE = 40, 2, (5, 20)
X = np.random.default_rng(0).normal(size=(BATCHES * 8, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Calls(keras.callbacks.Callback):
    def __init__(self, call):
        super().__init__()
        self.call = call
        self.batches = 0
        self.results = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if batch in INSIDE and self.call is not None:
            self.results.append(self.call(self.model))


CALLS = {
    "none": None,
    "predict": lambda model: float(np.square(model.predict(X, verbose=0) - Y).mean()),
    "evaluate": lambda model: model.evaluate(X, Y, verbose=0),
    "test_on_batch": lambda model: float(model.test_on_batch(X, Y)),
}


RESETS = {
    "one metric": lambda model: model.metrics[0].reset_state(),
    "all": lambda model: model.reset_metrics(),
    "after evaluate": lambda model: (model.evaluate(X, Y, verbose=0), model.metrics[0].reset_state()),
    "twice": lambda model: [model.metrics[0].reset_state() for _ in range(2)],
    "one batch": lambda model: model.train_on_batch(X[:8], Y[:8]),
    "epochs": lambda model: model.fit(X[:24], Y[:24], batch_size=12, epochs=2, verbose=0),
    "an error": lambda model: interrupted(model),
}


def interrupted(model):
    """Calls `fit` and ends it in its second step."""
    with contextlib.suppress(ZeroDivisionError):
        model.fit(X[:24], Y[:24], batch_size=12, verbose=0, callbacks=[At(1, lambda model: 1 / 0)])


class At(keras.callbacks.Callback):
    """Makes a call in each epoch after the batch with this number, or after each of several."""

    def __init__(self, at, call):
        super().__init__()
        self.at, self.call = [at] if isinstance(at, int) else at, call
        self.batches, self.results = 0, []

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if batch in self.at:
            self.results.append(self.call(self.model))


def linear(strategy, rate):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(rate), "mse")
    return model


class Scored(keras.Model):
    """Each step counts in a metric that creates its variables with its first batch."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.f1 = keras.metrics.F1Score(name="f1")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        self.f1.update_state(data[1], data[0])
        return {**super().train_step(data), "f1": self.f1.result()}


def scores(strategy):
    """Returns the scores of two epochs, and what they are for all examples."""
    with strategy.scope():
        model = Scored()
        model.compile(keras.optimizers.SGD(0.0), "mse")
    guesses, classes = X[:, :3], np.eye(3, dtype="float32")[np.argmax(X[:, 1:], axis=1)]
    found = model.fit(guesses, classes, batch_size=8, epochs=2, verbose=0).history["f1"]
    metric = keras.metrics.F1Score()
    metric.update_state(classes, guesses)
    return [np.asarray(score).tolist() for score in [*found, metric.result()]]


def in_threads(model, other):
    """Returns what calls in a thread say, one inside `fit` and one after it, and how many steps that `fit` has made."""
    said = []

    def call():
        try:
            said.append(other.predict(X, verbose=0).shape[0])
        except RuntimeError as error:
            said.append(str(error))

    def in_thread(model=None):
        thread = threading.Thread(target=call, name="actor")
        thread.start()
        thread.join()

    at = At(4, in_thread)
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[at])
    in_thread()
    return [*said, at.batches]


class Slow(keras.layers.Layer):
    """Returns its input after about 0.1 s."""

    def call(self, x):
        matrix = tf.random.stateless_uniform((500, 500), [1, 2])
        matrix = tf.while_loop(lambda i, m: i < 20, lambda i, m: (i + 1, tf.matmul(m, m) / 500.0), [tf.constant(0), matrix])[1]
        return x + 0.0 * tf.reduce_sum(tf.stop_gradient(tf.minimum(matrix, 1.0)))


def after_an_exception(strategy):
    """Returns how far weights and count of steps are, a second later, from what the program sets after an error in `fit`."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Slow(), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile("sgd", "mse")
    model.fit(X[:16], Y[:16], batch_size=8, verbose=0)
    weights = model.get_weights()
    try:
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[At(3, lambda model: 1 / 0)])
    except ZeroDivisionError:
        model.set_weights(weights)
    iterations = int(model.optimizer.iterations.numpy())
    time.sleep(1.0)
    changed = [float(abs(new - old).max()) for new, old in zip(model.get_weights(), weights, strict=True)]
    return [*changed, int(model.optimizer.iterations.numpy()) - iterations]


def own_calls(strategy):
    """Returns what calls inside `fit` find that count in the metrics of that `fit`, or train the same model.

    Its models do not learn: the loss for some examples stays the same.
    """
    high = Y + np.repeat([100.0, 0.0], [len(Y) // 4, len(Y) - len(Y) // 4])[:, None]  # The first quarter has a loss of 10000.
    model, other = linear(strategy, 0.0), linear(strategy, 0.0)
    flat = {"batch_size": 8, "verbose": 0, "shuffle": False}
    counted, losses = {}, {}
    for name, reset in RESETS.items():
        counts = At(range(BATCHES - 2, BATCHES), lambda model: float(model.metrics[0].count.numpy()))
        record = model.fit(X, high, callbacks=[At(BATCHES - 3, reset), counts], **flat).history
        metric = model.metrics[0]
        counted[name] = [*counts.results, float(metric.count.numpy())]
        losses[name] = [*record["loss"], float(metric.total.numpy() / metric.count.numpy())]
    at = At(BATCHES - 1, lambda model: float(other.train_on_batch(X[:8], Y[:8])))
    after_another = model.fit(X, high, callbacks=[at], **flat).history["loss"][0]
    at = At(4, lambda model: float(model.train_on_batch(X[:8], high[:8])))
    model.fit(X, Y, callbacks=[at], **flat)
    one_batch = [at.results[0], float(model.test_on_batch(X[:8], high[:8]))]
    before, at = (
        int(model.optimizer.iterations),
        At(3, lambda model: model.fit(X[:24], Y[:24], batch_size=24, verbose=0) and None),
    )
    forever = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).repeat()
    model.fit(forever, steps_per_epoch=10, epochs=2, verbose=0, callbacks=[at])
    fits = {"batches": at.batches, "iterations": int(model.optimizer.iterations) - before}
    return {
        "counted after reset": counted,
        "losses after reset": losses,
        "after another": after_another,
        "one batch": one_batch,
        "fits": fits,
        "scores": scores(strategy),
        "threads": in_threads(model, other),
        "after an exception": after_an_exception(strategy),
    }


def main():
    cluster = tfdist.read({"chief": 1, "worker": 2, "ps": 1})
    if sys.argv[1] == "hogwild":
        cluster = dataclasses.replace(cluster, strategy="hogwild", sync_period=4)
    strategy = tfdist.strategy(cluster)
    found, model = {}, linear(strategy, 0.01)
    for name, call in CALLS.items():
        calls, before = Calls(call), int(model.optimizer.iterations)
        model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
        record = model.fit(X, Y, batch_size=8, epochs=EPOCHS, verbose=0, callbacks=[calls], validation_data=(X, Y)).history
        found[name] = {
            "batches": calls.batches,
            "iterations": int(model.optimizer.iterations) - before,
            "inside": calls.results,
            "final": model.evaluate(X, Y, verbose=0),
            **record,
        }
    results = {"calls": found, "own": own_calls(strategy), "slow": slow_callback.trained(strategy)}
    with open("results.json", "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
