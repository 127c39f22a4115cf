"""Losses and models of every form: what a step computes must not depend on how many replicas compute it."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from contract.common import (
    NUMBERED,
    RATE,
    X,
    Y,
    case,
    compiled,
    counting,
    fit,
    once,
    part_of,
    trained,
)

BATCH = 50


def mean_of_all(y_true, y_pred):
    """A loss that returns one number for the batch."""
    return ops.mean(ops.square(y_true - y_pred))


def sgd():
    return keras.optimizers.SGD(RATE)


def with_weights(model, history):
    """Returns the result of a case whose weights are compared, where strategies are synchronous, beside its history."""
    return trained(model, history) | {
        "weights": {weight.path: np.asarray(weight).tolist() for weight in model.trainable_weights}
    }


class Adds(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x


class Endpoint(keras.layers.Layer):
    """Keras' example of an endpoint layer, with another loss."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.loss = keras.losses.MeanSquaredError()

    def call(self, targets, outputs):
        self.add_loss(self.loss(targets, outputs))
        return outputs


@case("functional", "loss_of_one_number", "loss_in_a_layer", "added_losses")
def outputs_side_by_side(strategy):
    """Trains models with one loss each, which share nothing, as outputs of one model. Two outputs share a layer."""

    def hidden(name, x, **arguments):
        return keras.layers.Dense(8, activation="tanh", name=f"{name}_hidden", **arguments)(x)

    def build():
        a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
        targets = keras.Input((1,), name="targets")
        both = keras.layers.Dense(4)(keras.layers.Concatenate()([a, b]))
        outputs = {name: keras.layers.Dense(1, name=name)(both) for name in ("first", "second")}
        outputs["one_number"] = keras.layers.Dense(1, name="one_number")(hidden("one_number", a))
        outputs["added"] = keras.layers.Dense(1, name="added")(Adds()(hidden("added", a, kernel_regularizer="l2")))
        inside = keras.layers.Dense(1, name="in_a_layer")(hidden("in_a_layer", a))
        outputs["endpoint"] = Endpoint(name="endpoint")(targets, inside)
        return keras.Model({"a": a, "b": b, "targets": targets}, outputs)

    losses = {"first": "mse", "second": "mae", "one_number": mean_of_all, "added": "mse"}
    model = compiled(strategy, build, sgd, losses)
    x, y = {"a": X, "b": -X, "targets": Y}, {"first": Y, "second": -Y, "one_number": Y, "added": Y, "endpoint": Y}
    result = with_weights(model, fit(model, x, y, batch_size=BATCH, epochs=2))
    shapes = {name: list(value.shape) for name, value in model.predict(x, verbose=0).items()}
    for series in filter(None, (result["near"], result["before"])):  # Beside the losses of the outputs, those that layers add.
        series["added"] = (np.asarray(series["loss"]) - sum(np.asarray(series[f"{name}_loss"]) for name in losses)).tolist()

    def row(prefix, *names):
        weights = {path: weight for path, weight in result["weights"].items() if path.startswith(prefix)}
        return part_of(result, *names) | {"weights": weights}

    both = row(("dense", "first", "second"), "first_loss", "second_loss")
    return {
        "functional": both | {"exact": both["exact"] | {"shapes": shapes}},
        "loss_of_one_number": row("one_number", "one_number_loss"),
        "loss_in_a_layer": row("in_a_layer", "added"),
        "added_losses": row("added", "added_loss", "added"),
    }


@case("subclassed", "own_compute_loss", "global_clipnorm")
def own_compute_loss(strategy):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.layer = keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)

        def call(self, x):
            return self.layer(self.hidden(x))

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return ops.mean(ops.square(y - y_pred)) + 0.1 * ops.mean(ops.abs(y_pred))

    model = compiled(strategy, Model, lambda: keras.optimizers.SGD(2 * RATE, global_clipnorm=0.5), None, ["mae"])
    result = with_weights(model, fit(model, X, Y, batch_size=BATCH, epochs=2))
    return dict.fromkeys(("subclassed", "own_compute_loss", "global_clipnorm"), result)


@case("train_step_from_scratch")
def train_step_from_scratch(strategy):
    class Model(keras.Model):  # After Keras' guide, "Going lower-level".
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(1)
            self.tracker = keras.metrics.Mean(name="loss")
            self.loss_of = keras.losses.MeanSquaredError()

        def call(self, x):
            return self.layer(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.loss_of(y, self(x, training=True))
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

        @property
        def metrics(self):
            return [self.tracker]

    model = compiled(strategy, Model, sgd, None)
    model(X[:1])
    history = fit(model, tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH), epochs=2)
    return with_weights(model, history)


@case("model_without_call")
def model_without_call(strategy):
    class GAN(keras.Model):
        def __init__(self):
            super().__init__()
            self.generator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            self.discriminator = keras.Sequential([keras.Input((1,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
            self.discriminator_loss = keras.metrics.Mean(name="discriminator_loss")
            self.generator_loss = keras.metrics.Mean(name="generator_loss")

        def compile(self):
            super().compile()
            self.discriminator_optimizer, self.generator_optimizer = sgd(), sgd()
            self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

        @property
        def metrics(self):
            return [self.discriminator_loss, self.generator_loss]

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                real, fake = self.discriminator(y), self.discriminator(self.generator(x))
                loss = self.loss_of(ops.ones_like(real), real) + self.loss_of(ops.zeros_like(fake), fake)
            variables = self.discriminator.trainable_variables
            self.discriminator_optimizer.apply(tape.gradient(loss, variables), variables)
            self.discriminator_loss.update_state(loss)
            with tf.GradientTape() as tape:
                fake = self.discriminator(self.generator(x))
                loss = self.loss_of(ops.ones_like(fake), fake)
            variables = self.generator.trainable_variables
            self.generator_optimizer.apply(tape.gradient(loss, variables), variables)
            self.generator_loss.update_state(loss)
            return {metric.name: metric.result() for metric in self.metrics}

    with strategy.scope():
        keras.utils.set_random_seed(3)
        model = GAN()
        model.compile()
    history = model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    steps = int(model.generator_optimizer.iterations.numpy())
    return {"exact": {"names": sorted(history), "steps": steps}, "near": history}


@case("fewer_examples_than_replicas")
def fewer_examples_than_replicas(strategy):
    model = counting(strategy)
    dataset = tf.data.Dataset.from_tensor_slices((X, NUMBERED)).batch(83)  # 83, 83, 83, 1.
    result = once(model, fit(model, dataset, epochs=2), 2)
    one = model.predict(X[:1], verbose=0)
    return result | {"exact": result["exact"] | {"predicted": list(one.shape)}}


@case("constraints")
def constraints(strategy):
    def build():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_constraint="non_neg")])

    model = compiled(strategy, build, lambda: keras.optimizers.SGD(RATE / 10), "mse")
    model.train_on_batch(X[:BATCH], Y[:BATCH])  # It clips the initial weights, which several workers may have read by then.
    history = fit(model, X, Y, batch_size=BATCH, epochs=3)
    kernel = model.get_weights()[0]
    assert kernel.min() >= 0, kernel
    return trained(model, history)


@case("assignments_in_every_batch")
def assignments_in_every_batch(strategy):
    class Anneal(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.layers[-1].share.assign(min(1.0, 0.5 + 0.1 * batch))

    class Shared(keras.layers.Layer):
        def build(self, shape):
            self.share = self.add_weight(shape=(), initializer="ones", trainable=False, name="share")

        def call(self, x):
            return x * (0.5 + 0.5 * self.share)

    def build():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1), Shared()])

    model = compiled(strategy, build, lambda: keras.optimizers.SGD(10 * RATE), "mse")
    history = fit(model, X, Y, batch_size=10, epochs=3, callbacks=[Anneal()])
    assert history["loss"][-1] < 0.6 * history["loss"][0], history
    return {"exact": {"names": sorted(history)}, "near": {}}
