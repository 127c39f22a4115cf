"""Trains on two replicas and in one process what a step keeps: writes the results of both to states.json, by case."""

import contextlib
import json
import sys

import drawn_states  # noqa: F401  Its cases are added to CASES.
import keras
import numpy as np
import tensorflow as tf
from keras import ops
from state_cases import CASES, N, X, Y, case, results_of, trained

import tfdist
from tfdist.cluster import Cluster, Task


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


class StartsByTheBatch(keras.layers.Layer):
    """Shifts by a trained weight that begins with the mean of the first batch, as ActNorm, and is clipped."""

    def build(self, shape):
        self.shift = self.add_weight(shape=(shape[-1],), initializer="zeros", name="shift")
        self.has_begun = self.add_weight(shape=(), initializer="zeros", trainable=False, name="has_begun")

    def call(self, x, training=False):
        shifted = x - self.shift
        if training:
            begin = ops.cast(ops.equal(self.has_begun, 0), x.dtype)
            self.shift.assign(ops.clip(self.shift, -2, 2) + begin * ops.mean(x, axis=0))
            self.has_begun.assign(1.0)
        return shifted


@case
def a_trained_weight_that_starts_by_the_first_batch(scope):
    return trained(scope, lambda: [StartsByTheBatch()])


@case
def the_same_with_several_steps_in_an_execution(scope):
    return trained(scope, lambda: [StartsByTheBatch()], steps_per_execution=4)


class MovesACode(keras.Model):
    """Its optimizer trains codes; then the step moves one of them to the batch, and another by the first, and clips the rest."""

    def __init__(self, note):
        super().__init__()
        self.note = note
        self.codes = self.add_weight(shape=(3, 4), initializer="ones", name="codes")
        self.scales = self.add_weight(shape=(4,), initializer="ones", name="scales")
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x * ops.mean(self.codes, axis=0) * self.scales)

    def train_step(self, data):
        self.note(ops.mean(data[0]))
        logs = super().train_step(data)
        moved = 0.5 * self.codes[:1] + 0.5 * ops.mean(data[0], axis=0, keepdims=True)
        self.codes.assign(ops.concatenate([moved, self.codes[1:]], axis=0))
        self.scales.assign(0.9 * self.scales + 0.01 * self.codes[0])
        self.dense.kernel.assign(ops.clip(self.dense.kernel, -1, 1))
        return logs


@case
def trained_weights_that_a_step_moves_after_the_update(scope):
    results = {}
    outside = keras.Variable(0.0, trainable=False)  # Of no strategy.
    for name, arguments in {"compiled": {}, "eager": {"run_eagerly": True}}.items():
        with scope():
            keras.utils.set_random_seed(1)
            model = MovesACode(outside.assign)
            model.compile(keras.optimizers.SGD(0.02), "mse", **arguments)
        results[name] = results_of(model, model.fit(X, Y, batch_size=7, shuffle=False, verbose=0).history["loss"])
    return results


@case
def an_average_with_the_aggregation_mean(scope):
    return trained(scope, lambda: [Centers(trainable=False, aggregation="mean")])


class Logarithms(keras.layers.Layer):
    def call(self, x):
        return ops.log(x)


@case
def a_replica_without_examples_and_logarithms(scope):
    with scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), Logarithms(), Centers(trainable=False), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.02), "mse")
    data = tf.data.Dataset.from_tensor_slices((np.exp(X[:41]), Y[:41])).batch(8)  # The last batch has one example.
    if scope is not contextlib.nullcontext:
        data = model.distribute_strategy.experimental_distribute_dataset(data)
    return results_of(model, model.fit(data, verbose=0).history["loss"])


class Passes(keras.layers.Layer):
    """Code of the program's own, for which steps are tried out."""

    def call(self, x):
        return x * 1.0


@case
def a_frozen_weight_of_a_normalization(scope):
    def layers():
        normalization = keras.layers.BatchNormalization(synchronized=True)
        normalization.build((None, 4))
        normalization.gamma.trainable = False
        return [Passes(), normalization]

    return trained(scope, layers)


class AddsForEachExample(keras.layers.Layer):
    """Adds a number for each example, with a weight that is 0 at first."""

    def build(self, shape):
        self.factor = self.add_weight(shape=(), initializer="zeros", trainable=False, name="factor")

    def call(self, x):
        self.add_loss(self.factor * ops.sum(ops.square(x), axis=-1))
        return x


@case
def added_losses_for_each_example_that_begin_with_zero(scope):
    with scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), AddsForEachExample(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.02), "mse")
    model.layers[1].factor.assign(0.01)
    before = model.evaluate(X, Y, batch_size=10, verbose=0)
    model.layers[1].factor.assign(0.0)

    def raise_factor(epoch, logs):
        model.layers[1].factor.assign(0.01 * epoch)

    callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=raise_factor)]
    record = model.fit(X, Y, batch_size=10, epochs=3, shuffle=False, verbose=0, validation_data=(X, Y), callbacks=callbacks)
    return {"before": before, **record.history, **results_of(model, record.history["loss"])}


@case
def functions_that_run_eagerly(scope):
    tf.config.run_functions_eagerly(True)
    try:
        with scope():
            keras.utils.set_random_seed(1)
            layers = [keras.Input((2,)), keras.layers.Embedding(10, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
            model = keras.Sequential(layers)
            model.compile(keras.optimizers.SGD(0.02), "mse", steps_per_execution=3)
        ids = np.arange(2 * N).reshape(N, 2) % 10
        return results_of(model, model.fit(ids, Y, batch_size=7, shuffle=False, verbose=0).history["loss"])
    finally:
        tf.config.run_functions_eagerly(False)


class AddsUp(keras.layers.Layer):
    """Adds up its inputs and counts them, in variables of which TensorFlow takes the sum over the replicas."""

    def build(self, shape):
        sums = {"initializer": "zeros", "trainable": False, "aggregation": "sum"}
        self.total = self.add_weight(shape=(shape[-1],), name="total", **sums)
        self.examples = self.add_weight(shape=(), dtype="int32", name="examples", **sums)

    def call(self, x, training=False):
        if training:
            self.total.assign_add(ops.sum(x, axis=0))
            self.examples.assign_sub(-ops.cast(ops.shape(x)[0], "int32"))
        return x


@case
def sums_over_the_replicas(scope):
    ways = {"compiled": {}, "eager": {"run_eagerly": True}, "in a loop": {"steps_per_execution": 3}}
    return {name: trained(scope, lambda: [AddsUp()], **arguments) for name, arguments in ways.items()}


class AddsSumOrMean(keras.layers.Layer):
    reduce = staticmethod(ops.sum)

    def call(self, x):
        self.add_loss(0.01 * self.reduce(ops.square(x)))
        return x


@case
def an_added_loss_that_is_a_sum_before_another_compile(scope):
    with scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), AddsSumOrMean(), keras.layers.Dense(1)])
    losses = []
    for model.layers[1].reduce in (ops.sum, ops.mean):
        model.compile(keras.optimizers.SGD(0.02), "mse")
        losses += model.fit(X, Y, batch_size=10, shuffle=False, verbose=0).history["loss"]
    return results_of(model, losses)


class CountsExamples(keras.Sequential):
    def train_step(self, data):
        logs = super().train_step(data)
        self.examples.update_state(ops.shape(data[0])[0])
        return {**logs, "examples": self.examples.result()}


@case
def a_number_of_examples_that_the_step_knows(scope):
    results = {}
    for name, arguments in {"compiled": {}, "eager": {"run_eagerly": True}}.items():
        with scope():
            model = CountsExamples([keras.Input((4,)), keras.layers.Dense(1)])
            model.examples = keras.metrics.Sum(name="examples")
            model.compile("sgd", "mse", **arguments)
        results[name] = [float(model.train_on_batch(X[:8], Y[:8], return_dict=True)["examples"]) for _ in range(2)]
    return results


class LogsNone(keras.Sequential):
    def train_step(self, data):
        return {**super().train_step(data), "absent": None}


@case
def a_log_that_is_none(scope):
    with scope():
        keras.utils.set_random_seed(1)
        model = LogsNone([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.02), "mse")
    return results_of(model, model.fit(X, Y, batch_size=7, shuffle=False, verbose=0).history["loss"])


class Misses(keras.layers.Layer):
    """Returns how far all inputs are from 1, by a loss of Keras."""

    def __init__(self):
        super().__init__()
        self.error = keras.losses.MeanSquaredError()

    def call(self, x):
        return ops.zeros_like(x) + self.error(ops.ones_like(x), x)


@case
def a_loss_in_a_layer_of_predictions(scope):
    with scope():
        model = keras.Sequential([keras.Input((4,)), Misses()])
    return model.predict(np.zeros((6, 4)), verbose=0).tolist()


class ListsNoMetric(keras.Sequential):
    """It has a metric, and forgets it in a property of its own."""

    @property
    def metrics(self):
        return []

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self(x) - y))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


@case
def logs_of_a_metric_that_the_model_does_not_list(scope):
    with scope():
        keras.utils.set_random_seed(1)
        model = ListsNoMetric([keras.Input((4,)), keras.layers.Dense(1)])
        model.tracker = keras.metrics.Mean()
        model.compile(keras.optimizers.SGD(0.02))
    return model.fit(X, Y, batch_size=7, epochs=2, shuffle=False, verbose=0).history


def main():
    scope = tfdist.strategy(Cluster((Task("chief", 0, slots=2),))).scope
    names = sys.argv[1:] or CASES
    results = {name: {"one": CASES[name](contextlib.nullcontext), "ours": CASES[name](scope)} for name in names}
    with open("states.json", "w") as file:
        json.dump(results, file)


main()
