"""Models with a `train_step` of their own, for programs that compare several replicas with one process: functions of the scope."""

import warnings

import keras
import numpy as np
import tensorflow as tf
from cases import Cases

X = (
    np.random.default_rng(2).normal(size=(250, 4)).astype("float32")
)  # In batches of 25, which two replicas cannot share evenly.
Y = X.sum(axis=1, keepdims=True)
case = CASES = Cases()


def weights_of(*models):
    return [w.ravel().tolist() for model in models for w in model.get_weights()]


class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"largest": tf.reduce_max(tf.abs(y)) * 0 + 7.0, "share": tf.cast(tf.shape(x)[0], tf.float32)}


@case
def own_train_step(scope):
    with scope():
        model = OwnStep()
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=2)
    record = model.fit(X, Y, batch_size=32, epochs=2, verbose=0).history
    return {"largest": record["largest"], "weights": weights_of(model)}


class LossForEachExample(OwnStep):
    """Takes gradients of a vector, which are those of its sum, and divides them by the number of examples if it says so."""

    def __init__(self, divides):
        super().__init__()
        self.divides = divides

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.abs(self(x) - y), axis=-1)
        gradients = tape.gradient(loss, self.trainable_variables)
        if self.divides:
            gradients = [gradient / tf.cast(tf.shape(x)[0], tf.float32) for gradient in gradients]
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"error": tf.reduce_mean(loss)}


@case
def a_loss_for_each_example_in_an_own_train_step(scope):
    found = {}
    for divides in (False, True):
        with scope():
            model = LossForEachExample(divides)
            model.compile(keras.optimizers.SGD(0.1 if divides else 0.004))
        record = model.fit(X, Y, batch_size=25, epochs=2, shuffle=False, verbose=0).history
        found |= {f"error {divides}": record["error"], f"weights {divides}": weights_of(model)}
    return found


class Pairs(keras.Model):
    """Its batches are pairs of what it takes."""

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            one, other = tf.nest.flatten(x)
            loss = keras.ops.mean(keras.ops.square(self(one) - self(other) - 1.0))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class PairsOfViews(keras.Model):
    train_step = Pairs.train_step

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    def call(self, x):
        return self.encoder(x)


class Half(keras.layers.Layer):
    def call(self, x):
        return x / 2


class Inverse(keras.Model):
    """Takes what its other layers make of a batch, as Keras' GauGAN does; unless built only its `train_step` knows their shapes."""

    def __init__(self, is_built=True):
        super().__init__()
        self.half = Half()
        self.encoder = keras.Sequential([keras.layers.Dense(2)])
        self.decoder = keras.Sequential([keras.layers.Dense(4)])
        if is_built:
            self.decoder(self.encoder(X))
        else:
            self.left_over = keras.layers.Dense(4)  # No step calls it, as one in Keras' transformer for speech.

    def call(self, code):
        return self.decoder(code)

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self(self.half(self.encoder(x))) - x))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class Coder(Inverse):
    """Has no `call`."""

    call = keras.Model.call

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self.decoder(self.encoder(x)) - x))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@case
def an_own_train_step_whose_batches_the_model_does_not_take(scope):
    inputs = keras.Input((4,))
    with scope():
        models = [Pairs(inputs, keras.layers.Dense(1)(inputs)), PairsOfViews()]
        others = [Inverse(), Inverse(is_built=False), Coder(is_built=False)]
        for each in models + others:
            each.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse" if each in models else None)
    with warnings.catch_warnings(record=True) as caught:
        for model, pairs in zip(models, ({"one": X, "other": X[::-1]}, (X, X[::-1])), strict=True):
            model.fit(pairs, batch_size=25, verbose=0, shuffle=False)
        model.train_on_batch(pairs)
    for other in others:
        other.fit(X, batch_size=25, verbose=0, shuffle=False)
    mismatches = ["structure of `inputs`" in str(warning.message) for warning in caught]
    return {"weights": weights_of(*models, *others), "mismatches": sum(mismatches)}


class Adversaries(keras.Model):
    """Two models with an optimizer each, which functions with `@tf.function` and conditions on tensors update."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, kernel_initializer="zeros")])
        self.discriminator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    def compile(self):
        super().compile(optimizer=None)
        self.of_generator, self.of_discriminator = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.02, momentum=0.9)

    def update(self, tape, loss, model, optimizer):
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    @tf.function
    def train_discriminator(self, real, noise):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.square(self.discriminator(real) - 1) + tf.square(self.discriminator(self.generator(noise)))
            )
            if tf.reduce_all(noise > 1e6):
                loss *= 0.0
        self.update(tape, loss, self.discriminator, self.of_discriminator)
        return loss

    @tf.function
    def train_generator(self, noise):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.discriminator(self.generator(noise)) - 1))
        self.update(tape, loss, self.generator, self.of_generator)
        return loss

    def train_step(self, data):
        real, noise = data
        return {"d_loss": self.train_discriminator(real, noise), "g_loss": self.train_generator(noise)}


@case
def an_own_train_step_with_two_optimizers_in_compiled_functions(scope):
    with scope():
        model = Adversaries()
        model.compile()
    record = model.fit(X, X[::-1], batch_size=25, epochs=2, verbose=0, shuffle=False).history
    return {**record, "weights": weights_of(model.generator, model.discriminator)}


def squared_error(model, x, y):
    return tf.reduce_mean(tf.square(model(x) - y))


class SeveralOptimizers(keras.Model):
    """Two models, with optimizers in a dict and in a list."""

    def __init__(self):
        super().__init__()
        self.models = [keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]) for _ in range(2)]

    def compile(self, **arguments):
        super().compile(optimizer=None, **arguments)
        self.others = {"first": keras.optimizers.Adam(0.01), "more": [keras.optimizers.SGD(0.02, momentum=0.9)]}

    def train_step(self, data):
        logs = {}
        for model, optimizer in zip(self.models, (self.others["first"], *self.others["more"]), strict=True):
            with tf.GradientTape() as tape:
                logs[f"loss{len(logs)}"] = loss = squared_error(model, *data)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return logs


@case
def an_own_train_step_with_optimizers_in_a_dict(scope):
    results = {}
    for name, arguments in {"compiled": {}, "eager": {"run_eagerly": True}}.items():
        with scope():
            model = SeveralOptimizers()
            model.compile(**arguments)
        record = model.fit(X, Y, batch_size=75, epochs=2, verbose=0, shuffle=False).history
        results[name] = {**record, "weights": weights_of(*model.models)}
    return results


class LearnsByItself(keras.layers.Layer):
    """A layer of Hinton's forward-forward algorithm: it has an optimizer."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4, activation="tanh")
        self.optimizer = keras.optimizers.Adam(0.03)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x)

    def learn(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.dense(x) - 1))
        weights = self.dense.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return tf.stop_gradient(self(x)), loss


class ForwardForward(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = LearnsByItself(), LearnsByItself()
        for layer in (self.first, self.second):
            layer.build((None, 4))

    def call(self, x):
        return self.second(self.first(x))

    def train_step(self, data):
        hidden, _ = self.first.learn(data[0])
        return {"error": self.second.learn(hidden)[1]}


@case
def an_own_train_step_with_optimizers_in_layers(scope):
    with scope():
        model = ForwardForward()
        model.compile()
    record = model.fit(X, Y, batch_size=25, epochs=2, verbose=0, shuffle=False).history
    return {**record, "weights": weights_of(model)}


class FineTunedLater(OwnStep):
    traces = 0

    def train_step(self, data):
        self.traces += 1
        return super().train_step(data)


@case
def an_own_train_step_with_an_optimizer_for_later(scope):
    with scope():
        model = FineTunedLater()
        model.compile(keras.optimizers.SGD(0.02), "mse")
        model.fine_tuning = keras.optimizers.Adam(1e-5)
    model.fit(X, Y, batch_size=25, epochs=3, verbose=0, shuffle=False)
    return {"traced few times": int(model.traces < 15), "weights": weights_of(model)}  # There are 33 steps.


class Codebook(keras.Model):
    """Its codes follow the mean of the examples; that they are trainable is an oversight, as in many programs."""

    def __init__(self, trains_all):
        super().__init__()
        self.trains_all = trains_all  # As Keras' own step: the codes have no gradient, and the optimizer leaves them out.
        self.dense = keras.layers.Dense(1)
        self.codes = self.add_weight(shape=(4,), initializer="zeros", name="codes")
        self.build((None, 4))

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        self.codes.assign(0.9 * self.codes + 0.1 * tf.reduce_mean(x, axis=0))
        with tf.GradientTape() as tape:
            loss = squared_error(self, x, y)
        weights = (self if self.trains_all else self.dense).trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"error": loss}


@case
def an_own_train_step_that_assigns_a_trainable_weight(scope):
    results = {}
    for trains_all in (False, True):
        with scope():
            model = Codebook(trains_all)
            model.compile(keras.optimizers.SGD(0.02))
        record = model.fit(X, Y, batch_size=25, epochs=2, verbose=0, shuffle=False).history
        local = [v.numpy() for v in getattr(model.codes.value, "values", [model.codes.value])]
        differences = max(float(abs(v - local[0]).max()) for v in local)
        results[str(trains_all)] = {**record, "weights": weights_of(model), "differences": differences}
    return results
