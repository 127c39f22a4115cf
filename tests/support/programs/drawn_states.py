"""Cases of states.py: what a step draws at random, integers, and what is 0 in the first batch."""

import random

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from state_cases import BATCH, LARGE, N, X, Y, case, cases, results_of, trained


class NoisyUpdates(keras.optimizers.SGD):
    """Adds noise to each update, as Langevin dynamics: to variables of pairs by numbers of TensorFlow, to others by Keras'."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.generator = keras.random.SeedGenerator(5)

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        is_pair = variable.shape[-1] == 2
        noise = tf.random.normal(variable.shape) if is_pair else keras.random.normal(variable.shape, seed=self.generator)
        self.assign_add(variable, 0.01 * noise)


@case
def random_numbers_in_an_update(scope):
    results = {}
    for name, arguments in {"compiled": {}, "eager": {"run_eagerly": True}}.items():
        with scope():
            keras.utils.set_random_seed(1)
            inputs = keras.Input((4,))
            one, pair = keras.layers.Dense(1), keras.layers.Dense(2)
            model = keras.Model(inputs, [one(inputs), pair(inputs)])
            model.compile(NoisyUpdates(0.02), "mse", **arguments)
        model.fit(X, [Y, Y], batch_size=LARGE, shuffle=False, verbose=0)
        weights = [w.ravel().tolist() for w in one.get_weights()]
        results[name] = {"weights": weights, "differences": results_of(model, [])["differences"]}
    return results


class AddsNoise(keras.Model):
    """Its step adds noise to the weights, draws others, and looks up rows at random."""

    def __init__(self):
        super().__init__()
        self.dense, self.table = keras.layers.Dense(1), keras.layers.Embedding(10, 2, embeddings_initializer="ones")
        self.generator = keras.random.SeedGenerator(4)
        self.direction = self.add_weight(shape=(3,), trainable=False, name="direction")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self(x) - y))
        weights = self.dense.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for weight in weights:
            weight.assign_add(0.05 * keras.random.normal(weight.shape, seed=self.generator))
        self.direction.assign(keras.random.normal((3,), seed=self.generator))
        return {"error": loss}


@case
def weights_that_a_step_draws(scope):
    with scope():
        keras.utils.set_random_seed(1)
        model = AddsNoise()
        model.build((None, 4))
        model.compile(keras.optimizers.SGD(0.02))
    return results_of(model, model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["error"])


class LooksUpAtRandom(AddsNoise):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            rows = self.table(keras.random.randint((3,), 0, 10, seed=self.generator))
            loss = ops.mean(data[1] ** 2) * ops.sum(ops.square(rows))
        self.optimizer.apply(tape.gradient(loss, self.table.trainable_variables), self.table.trainable_variables)
        return {"loss": loss}


@case
def rows_that_a_step_draws(scope):
    with scope():
        keras.utils.set_random_seed(1)
        model = LooksUpAtRandom()
        model.build((None, 4))
        model.table.build(None)
        model.compile(keras.optimizers.SGD(1e-4))
    model.fit(X, Y, batch_size=10, shuffle=False, verbose=0)
    return results_of(model, [])["differences"]  # Replicas draw their own.


class RatesByLosses(keras.Sequential):
    """Sets its learning rate by the loss of the batch."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self(x) - y))
        self.optimizer.learning_rate.assign(0.001 * loss)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"error": loss}


@case
def a_learning_rate_by_the_batch(scope):
    results = {}
    for name, arguments in {"compiled": {}, "eager": {"run_eagerly": True}}.items():
        with scope():
            keras.utils.set_random_seed(1)
            model = RatesByLosses([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.Adam(0.02), **arguments)
        model.fit(X, Y, batch_size=LARGE, shuffle=False, verbose=0)
        results[name] = [results_of(model, []), float(ops.convert_to_numpy(model.optimizer.learning_rate))]
    return results


class Noise(keras.layers.Layer):
    def call(self, x, training=False):
        return x + keras.random.normal(ops.shape(x)) if training else x


@cases("numbers_without_a_seed_after_clear_session", "numbers_without_a_seed_after_another_seed_is_set")
def numbers_without_a_seed(scope):
    losses = []
    for is_cleared in (True, True, False):
        if is_cleared:
            keras.utils.clear_session()
        losses += trained(scope, lambda: [Noise()], epochs=1)["losses"]
    return {
        "numbers_without_a_seed_after_clear_session": losses[0] - losses[1],
        "numbers_without_a_seed_after_another_seed_is_set": [losses[1] == losses[2]],
    }


@case
def numbers_without_a_seed_in_a_step_that_runs_eagerly(scope):
    """One generator gives all of them: it is made once, and draws its seed from `random` then."""
    states = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: states.append(random.getstate()))
    with scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), Noise(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.02), "mse", run_eagerly=True)
    model.fit(X, Y, batch_size=LARGE, epochs=2, shuffle=False, verbose=0, callbacks=[callback])
    return {"same": float(states[0] == states[1]), "differences": results_of(model, [])["differences"]}


class KeepsIntegers(keras.layers.Layer):
    """Keeps a number and a truth value of its first example."""

    def build(self, shape):
        self.first = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="first")
        self.is_positive = self.add_weight(shape=(), dtype="bool", initializer="zeros", trainable=False, name="is_positive")
        self.steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="steps")

    def call(self, x, training=False):
        if training:
            self.first.assign(ops.cast(100 * x[0, 0], "int32"))
            self.is_positive.assign(x[0, 0] > 0)
            self.steps.assign_add(1)
        return x


class CountsInBranch(keras.layers.Layer):
    """Counts the batches whose first example is positive, in a branch, as integers and as floats."""

    def build(self, shape):
        self.positive = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="positive")
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")

    def call(self, x, training=False):
        def count():
            self.positive.assign(self.positive + 1)
            return 0

        if training:
            ops.cond(x[0, 0] > 0, count, lambda: 0)
            self.steps.assign(self.steps + 1)
        return x


class Adds(keras.metrics.Metric):
    """Adds a number of a batch, and counts the batches."""

    def __init__(self, number, name):
        super().__init__(name=name)
        self.number = number
        self.total, self.batches = (self.add_variable((), "zeros", name=each) for each in ("total", "batches"))

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(self.number(ops.cast(y_true > 0.5, "float32")))
        self.batches.assign_add(1.0)

    def result(self):
        return self.total / (self.batches + 1e-7)


class AddsSum(keras.layers.Layer):
    """Adds a sum over the examples as a loss, with a weight that is 0 at first."""

    def build(self, shape):
        self.factor = self.add_weight(shape=(), initializer="zeros", trainable=False, name="factor")

    def call(self, x):
        self.add_loss(self.factor * ops.sum(ops.square(x)))
        return x


@case
def what_is_zero_in_the_first_batch(scope):
    with scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), AddsSum(), keras.layers.Dense(1)])
        metrics = [Adds(ops.mean, "mean_of_batch"), Adds(ops.sum, "sum_over_examples")]
        model.compile(keras.optimizers.SGD(0.02), "mse", metrics=metrics)

    def raise_factor(epoch, logs):
        model.layers[1].factor.assign(0.01 * epoch)

    y = np.where(np.arange(N)[:, None] < 20, 0, Y)
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=raise_factor)]
    history = model.fit(X, y, batch_size=10, epochs=3, shuffle=False, verbose=0, callbacks=callbacks).history
    return {**history, **results_of(model, [])}


class CountsSteps(keras.Sequential):
    def train_step(self, data):
        logs = super().train_step(data)
        self.steps.update_state(1)
        return {**logs, "steps": self.steps.result()}


@case
def a_sum_of_integers(scope):
    with scope():
        keras.utils.set_random_seed(1)
        model = CountsSteps([keras.Input((4,)), keras.layers.Dense(1)])
        model.steps = keras.metrics.Sum(name="steps", dtype="int32")
        model.compile(keras.optimizers.SGD(0.02), "mse")
    return model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0).history


@case
def what_metrics_count_outside_of_fit(scope):
    """In variables of integers, and in one that begins with 1."""
    with scope():
        overlap, steps = keras.metrics.MeanIoU(3), keras.metrics.Sum(dtype="int32")
        steps.total = steps.add_variable((), "ones", dtype="int32")
        seen = []
        for classes, guesses in (([0, 1, 2, 2], [0, 1, 1, 2]), ([1, 2, 0, 0], [2, 2, 0, 1])):
            overlap.update_state(classes, guesses)
            steps.update_state(1)
            seen.append([overlap.result(), steps.result()])
    count = tf.function(steps.update_state)
    for number in (1, 3):
        count(number)
        steps.update_state(number)
        overlap.update_state([number - 1], [0])
        seen.append([overlap.result(), steps.result()])
    return np.array(seen, "float64").ravel().tolist()


class Means(Adds):
    """Takes the mean of numbers."""

    def __init__(self, name):
        super().__init__(None, name)

    def update_state(self, number):
        self.total.assign_add(number)
        self.batches.assign_add(1.0)


class ShowsEachBatch(keras.Sequential):
    """Resets a metric in each step, and returns no value of a log."""

    def train_step(self, data):
        super().train_step(data)
        self.error.reset_state()
        self.error.update_state(ops.mean(ops.square(self(data[0]) - data[1])))
        return {"of_batch": self.error.result(), "absent": None}


@cases("a_metric_that_each_step_resets", "a_log_that_is_none")
def logs_of_each_batch(scope):
    with scope():
        keras.utils.set_random_seed(1)
        model = ShowsEachBatch([keras.Input((4,)), keras.layers.Dense(1)])
        model.error = Means("error")
        model.compile(keras.optimizers.SGD(0.02), "mse")
    history = model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    return {"a_metric_that_each_step_resets": history["of_batch"], "a_log_that_is_none": results_of(model, [])}


class AddsSumsInTraining(keras.Sequential):
    """Its metric gets sums over the examples in training, and means in tests."""

    def train_step(self, data):
        logs = super().train_step(data)
        self.error.update_state(ops.sum(ops.square(self(data[0]) - data[1])))
        return {**logs, "error": self.error.result()}

    def test_step(self, data):
        self.error.update_state(ops.mean(ops.square(self(data[0]) - data[1])))
        return {"error": self.error.result()}


@case
def a_metric_that_gets_sums_in_training_and_means_in_tests(scope):
    with scope():
        keras.utils.set_random_seed(1)
        model = AddsSumsInTraining([keras.Input((4,)), keras.layers.Dense(1)])
        model.error = keras.metrics.Mean(name="error")
        model.compile(keras.optimizers.SGD(0.02), "mse")
    return model.fit(X, Y, batch_size=10, epochs=2, shuffle=False, verbose=0, validation_data=(X, Y)).history
