"""Trains models whose steps replicas compute differently from one process, and models whose steps they do not.

`shared_batches.py CASE ...` writes what tfdist logs of each model to warnings.json, as {case: [message, ...]}. Of a case
`NAME:trial` a data-parallel strategy tries the first step out, and then the training ends, because a step takes seconds to trace.
"""

import contextlib
import json
import logging
import sys
from unittest import mock

import keras
import numpy as np
import shared_branches  # noqa: F401 (it adds its cases)
import shared_gradients  # noqa: F401 (so does it)
import shared_kept  # noqa: F401 (so does it)
import shared_losses  # noqa: F401 (so does it)
import tensorflow as tf
from keras import layers, ops
from shared_models import CASES, INPUTS, X, Y, case, changed_by, cross_entropies, own, similarities, small

import tfdist
from tfdist.strategies.data_parallel.training_loop import TrainingLoop

# Steps that replicas compute differently.


@case
def contrastive():
    """Of views of the same examples; it draws random numbers."""

    def loss(model, x, y, z):
        first, second = model.drop(z, training=True), model.drop(z, training=True)
        return ops.mean(cross_entropies(ops.matmul(first, ops.transpose(second))))

    return own("contrastive", loss=loss)


@case
def normalized_by_hand():
    def loss(model, x, y, z):
        return ops.mean(((z - ops.mean(z, axis=0)) / (ops.std(z, axis=0) + 1e-3) - y) ** 2)

    return own("normalized_by_hand", loss=loss)


@case
def a_sum_of_the_examples():
    return own("a_sum_of_the_examples", loss=lambda model, x, y, z: ops.sum((z - y) ** 2))


@case
def a_sum_with_random_numbers():
    def loss(model, x, y, z):
        return ops.sum((z + keras.random.normal(ops.shape(z)) - y) ** 2)

    return own("a_sum_with_random_numbers", loss=loss)


@case
def a_sum_and_a_regularizer():
    def loss(model, x, y, z):
        return ops.sum((z - y) ** 2) + sum(ops.sum(weight**2) for weight in model.net.trainable_variables)

    return own("a_sum_and_a_regularizer", loss=loss)


@case
def a_sum_of_keras_divided_by_hand():
    summed = keras.losses.MeanSquaredError(reduction="sum")
    return own(
        "a_sum_of_keras_divided_by_hand",
        loss=lambda model, x, y, z: summed(ops.broadcast_to(y, ops.shape(z)), z) / ops.cast(ops.shape(x)[0], "float32"),
    )


@case
def a_queue_of_examples():
    def before(model, x, y, z, gradients):
        model.rows.assign(ops.concatenate([model.rows[ops.shape(z)[0] :], z], axis=0))

    return own("a_queue_of_examples", before=before)


@case
def a_number_of_examples():
    """An integer. The step draws random numbers, too."""

    def before(model, x, y, z, gradients):
        model.drop(z, training=True)
        model.seen.assign_add(ops.shape(z)[0])

    return own("a_number_of_examples", before=before)


@case
def a_codebook_that_follows_its_averages():
    """It is computed from what the step has assigned before."""

    def before(model, x, y, z, gradients):
        model.mean.assign(0.99 * model.mean + 0.01 * ops.mean(z, axis=0))
        model.rows.assign(ops.ones((16, 1)) * ops.square(model.mean))

    return own("a_codebook_that_follows_its_averages", before=before)


@case
def operations_over_the_batch():
    inputs = keras.Input((6,))
    hidden = layers.Dense(4)(inputs)
    model = keras.Model(inputs, hidden - ops.mean(hidden, axis=0, keepdims=True), name="operations_over_the_batch")
    model.compile("sgd", "mse")
    return model


class Signs(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        super().apply([ops.sign(gradient) for gradient in grads], trainable_variables)


@case
def an_optimizer_that_changes_gradients():
    model = small(name="an_optimizer_that_changes_gradients")
    model.compile(Signs(0.01), "mse")
    return model


@case
def a_regularizer_that_compares_examples():
    regularized = layers.Dense(9, activity_regularizer=lambda z: ops.sum(ops.square(similarities(z))))
    model = small(regularized, name="a_regularizer_that_compares_examples")
    model.compile("sgd", "mse")
    return model


@case
def batch_normalization():
    model = small(layers.BatchNormalization(name="bn"), name="batch_normalization")
    model.compile("sgd", "mse")
    return model


class SetsTrainable(keras.Sequential):
    """Sets `trainable` in its step, as a GAN may."""

    def train_step(self, data):
        self.trainable = False
        self.trainable = True
        return super().train_step(data)


@case
def a_step_that_sets_trainable_of_a_normalization():
    net = [keras.Input((6,)), layers.Dense(8), layers.BatchNormalization(name="bn"), layers.Dense(4)]
    model = SetsTrainable(net, name="a_step_that_sets_trainable_of_a_normalization")
    model.compile("sgd", "mse")
    return model


class Infers(keras.Model):
    """Calls a normalization with `training=False`, as a model that learns from another one."""

    def __init__(self, **options):
        super().__init__(**options)
        self.net, self.last = small(layers.BatchNormalization(name="bn")), layers.Dense(1)

    def call(self, x):
        return self.last(self.net(x, training=False))


@case
def a_normalization_that_only_infers():
    model = Infers(name="a_normalization_that_only_infers")
    model.compile("sgd", "mse")
    return model


# Steps that cannot be tried out.


@case
def random_numbers_without_a_seed():
    return own(
        "random_numbers_without_a_seed", loss=lambda model, x, y, z: ops.mean((z + tf.random.normal(tf.shape(z)) - y) ** 2)
    )


@case
def a_branch_by_the_batch():
    return changed_by("a_branch_by_the_batch", layers.Lambda(lambda x: ops.cond(ops.mean(x) > -9, lambda: 2 * x, lambda: x)))


@case
def a_variable_of_tensorflow():
    queue = tf.Variable(np.zeros((16, 4), "float32"), trainable=False, name="queue")

    def before(model, x, y, z, gradients):
        queue.assign(tf.concat([queue[tf.shape(z)[0] :], z], axis=0))

    return own("a_variable_of_tensorflow", before=before)


# Steps that they compute as one process does.


@case
def a_mean_of_the_examples():
    return own("a_mean_of_the_examples", loss=lambda model, x, y, z: ops.mean((model.drop(z, training=True) - y) ** 2))


@case
def random_numbers():
    return own("random_numbers", loss=lambda model, x, y, z: ops.mean((z + keras.random.normal(ops.shape(z)) - y) ** 2))


class Centralized(keras.optimizers.SGD):
    """Subtracts the means of gradients, which can be done before they are added up and after."""

    def apply_gradients(self, grads_and_vars):
        super().apply_gradients([(gradient - ops.mean(gradient), variable) for gradient, variable in grads_and_vars])


@case
def an_optimizer_that_centralizes_gradients():
    model = small(name="an_optimizer_that_centralizes_gradients")
    model.compile(Centralized(0.01), "mse", metrics=["mae"])
    return model


@case
def few_random_numbers():
    """All of the update is random, and a draw of so few numbers may look like a sum."""
    seeds = keras.random.SeedGenerator(17)

    def loss(model, x, y, z):
        return ops.mean(keras.random.normal((ops.shape(z)[0], 1), seed=seeds) * z)

    return own("few_random_numbers", loss=loss)


@case
def a_moving_average():
    """And a number of steps."""

    def before(model, x, y, z, gradients):
        model.seen.assign_add(1)
        model.mean.assign(0.9 * model.mean + 0.1 * ops.mean(z, axis=0))

    return own("a_moving_average", before=before)


def two_nets(name, first_loss):
    """Returns a model of two networks with an optimizer each. The second one's loss is a mean."""

    class Two(keras.Model):
        def __init__(self):
            super().__init__(name=name)
            self.first, self.second = small(), small()
            self.others = keras.optimizers.Adam(0.01)

        def train_step(self, data):
            x, y = data
            for net, optimizer, loss_of in ((self.first, self.optimizer, first_loss), (self.second, self.others, large_mean)):
                with tf.GradientTape() as tape:
                    loss = loss_of(net, net(x, training=True), y)
                optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
            return {"loss": loss}

    model = Two()
    model.compile("sgd")
    return model


def large_mean(net, z, y):
    return 1000 * ops.mean((z - y) ** 2)


@case
def two_optimizers():
    return two_nets("two_optimizers", large_mean)


@case
def a_sum_beside_the_larger_mean_of_another_optimizer():
    def loss(net, z, y):
        return ops.sum((z + keras.random.normal(ops.shape(z)) - y) ** 2) + sum(ops.sum(v**2) for v in net.trainable_variables)

    return two_nets("a_sum_beside_the_larger_mean_of_another_optimizer", loss)


@case
def an_average_that_the_step_uses():
    return changed_by("an_average_that_the_step_uses", Centered())


class Centered(layers.Layer):
    """Subtracts a slow average of its inputs."""

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False, name="mean")

    def call(self, x):
        self.mean.assign(0.99 * self.mean + 0.01 * ops.mean(x, axis=0))
        return x - self.mean


@case
def an_embedding():
    class Embeds(keras.Model):
        def __init__(self):
            super().__init__(name="an_embedding")
            self.table = layers.Embedding(9, 4)
            self.table.build((None, 6))

        def train_step(self, data):
            with tf.GradientTape() as tape:
                rows = self.table(ops.cast(ops.clip(data[0] + 4, 0, 8), "int32"))
                loss = tf.debugging.check_numerics(ops.mean((rows - data[1][:, None]) ** 2), "the loss")
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    model = Embeds()
    model.compile("sgd")
    return model


@case
def synchronized_normalization():
    inputs = keras.Input((6,))
    hidden = layers.BatchNormalization(synchronized=True)(layers.Dense(4)(inputs))
    model = keras.Model(inputs, ops.tanh(hidden), name="synchronized_normalization")
    model.compile("sgd", "mse")
    return model


class TriedOutError(Exception):
    """Ends a training where its first step would begin."""


def main(arguments):
    strategy = tfdist.strategy()
    found = {}

    class Collect(logging.Handler):
        def emit(self, record):
            found[name].append(record.getMessage())

    logging.getLogger("tfdist").addHandler(Collect())
    for argument in arguments or CASES:
        name, _, until = argument.partition(":")
        found[name] = []
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = CASES[name]()
        y = np.repeat(Y[:, None], 6, axis=1) if name == "a_mask" else Y
        weights = {"sample_weight": X[:, 0] ** 2} if "weights" in name else {}
        few = name == "an_average_that_the_step_uses"  # Fewer than two examples for one of the replicas.
        x = INPUTS[name]() if name in INPUTS else X
        with contextlib.ExitStack() as stack:
            if until == "trial":
                stack.enter_context(contextlib.suppress(TriedOutError))
                stack.enter_context(mock.patch.object(TrainingLoop, "_call", side_effect=TriedOutError))
            if name.startswith("evaluate"):
                model.evaluate(x, y, batch_size=12, verbose=0)
            elif name.startswith("predict"):
                model.predict(x, batch_size=12, verbose=0)
            else:
                model.fit(x, y, batch_size=3 if few else 12, epochs=1, verbose=0, **weights)
            assert until != "trial"
    if tfdist.is_chief():
        with open("warnings.json", "w") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1:])
