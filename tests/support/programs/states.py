"""Trains on two replicas and in one process what a step keeps: writes the results of both to states.json, by case."""

import contextlib
import json
import sys

import keras
import numpy as np
import tensorflow as tf
from drawn_states import CountsInBranch, KeepsIntegers
from keras import ops
from state_cases import BATCH, CASES, LARGE, NAMES, N, X, Y, case, cases, of_first_and_last, results_of, side_by_side, trained

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


class Passes(keras.layers.Layer):
    """Code of the program's own, for which steps are tried out."""

    def call(self, x):
        return x * 1.0


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


@cases(
    "a_trained_weight_that_starts_by_the_first_batch",
    "an_average_with_the_aggregation_mean",
    "a_frozen_weight_of_a_normalization",
    "sums_over_the_replicas",
    "integers_that_depend_on_the_batch",
    "integers_that_are_counted_in_a_branch_by_the_batch",
)
def kept_by_a_step(scope):
    def layers():
        normalization = keras.layers.BatchNormalization(synchronized=True)
        normalization.build((None, 4))
        normalization.gamma.trainable = False
        return {
            "a_trained_weight_that_starts_by_the_first_batch": [StartsByTheBatch()],
            "an_average_with_the_aggregation_mean": [Centers(trainable=False, aggregation="mean")],
            "a_frozen_weight_of_a_normalization": [Passes(), normalization],
            "sums_over_the_replicas": [AddsUp()],
            "integers_that_depend_on_the_batch": [KeepsIntegers()],
            "integers_that_are_counted_in_a_branch_by_the_batch": [CountsInBranch()],
        }

    found = side_by_side(scope, layers, BATCH)
    of_integers = [name for name in found if name.startswith("integers")]
    results = {name: results_of(*found[name]) for name in found if name not in of_integers}
    return results | {name: of_first_and_last(found[name][0].layers[0]) for name in of_integers}


@cases(
    "averages_that_the_next_step_of_an_execution_reads",
    "a_trained_weight_that_starts_by_the_first_step_of_an_execution",
    "sums_over_the_replicas_in_several_steps_of_an_execution",
)
def kept_by_several_steps(scope):
    def layers():
        return {
            "averages_that_the_next_step_of_an_execution_reads": [Centers(trainable=False)],
            "a_trained_weight_that_starts_by_the_first_step_of_an_execution": [StartsByTheBatch()],
            "sums_over_the_replicas_in_several_steps_of_an_execution": [AddsUp()],
        }

    found = side_by_side(scope, layers, 7, steps_per_execution=4)
    return {name: results_of(*results) for name, results in found.items()}


@case
def sums_over_the_replicas_in_a_step_that_runs_eagerly(scope):
    return trained(scope, lambda: [AddsUp()], LARGE, run_eagerly=True)


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
        results[name] = results_of(model, model.fit(X, Y, batch_size=LARGE, shuffle=False, verbose=0).history["loss"])
    return results


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
        return results_of(model, model.fit(ids, Y, batch_size=BATCH, shuffle=False, verbose=0).history["loss"])
    finally:
        tf.config.run_functions_eagerly(False)


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
        self.constants.update_state(3.0, sample_weight=2.0)
        self.weighted.update_state(ops.mean(ops.abs(data[1])), sample_weight=2.0)
        return logs | {metric.name: metric.result() for metric in (self.examples, self.constants, self.weighted)}


@case
def a_number_of_examples_that_the_step_knows(scope):
    results = {}
    for name, arguments in {"compiled": {}, "eager": {"run_eagerly": True}}.items():
        with scope():
            model = CountsExamples([keras.Input((4,)), keras.layers.Dense(1)])
            model.examples = keras.metrics.Sum(name="examples")
            model.constants, model.weighted = keras.metrics.Sum(name="constants"), keras.metrics.Mean(name="weighted")
            model.compile("sgd", "mse", **arguments)
        logs = [model.train_on_batch(X[:rows], Y[:rows], return_dict=True) for rows in (8, 8, 3, 1)]
        results[name] = [float(each[metric]) for each in logs for metric in ("examples", "constants", "weighted")]
    return results


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
    return model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history


def main():
    scope = tfdist.strategy(Cluster((Task("chief", 0, slots=2),))).scope
    results = {}
    for name in sys.argv[1:] or CASES:
        both = {"one": CASES[name](contextlib.nullcontext), "ours": CASES[name](scope)}
        for each in NAMES.get(name, ()):
            results[each] = {side: found[each] for side, found in both.items()}
        if name not in NAMES:
            results[name] = both
    with open("states.json", "w") as file:
        json.dump(results, file)


main()
