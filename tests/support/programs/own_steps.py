"""Models with a `train_step` of their own, for programs that compare several replicas with one process: functions of the scope."""

import keras
import numpy as np
import tensorflow as tf

X = np.random.default_rng(2).normal(size=(251, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
CASES = []


def case(function):
    CASES.append(function)
    return function


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


class Pairs(keras.Model):
    """Its batches are pairs of what it takes."""

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self(x["one"]) - self(x["other"]) - 1.0))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@case
def an_own_train_step_whose_batches_the_model_does_not_take(scope):
    inputs = keras.Input((4,))
    with scope():
        model = Pairs(inputs, keras.layers.Dense(1)(inputs))
        model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse")
    model.fit({"one": X, "other": X[::-1]}, batch_size=50, epochs=2, verbose=0, shuffle=False)
    return {"weights": weights_of(model)}


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
    record = model.fit(X, X[::-1], batch_size=50, epochs=2, verbose=0, shuffle=False).history
    return {**record, "weights": weights_of(model.generator, model.discriminator)}
