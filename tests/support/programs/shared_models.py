"""What the models of shared_batches.py and shared_losses.py are made of."""

import keras
import numpy as np
import tensorflow as tf
from cases import NamedCases
from keras import layers, ops

X = np.random.default_rng(0).normal(size=(48, 6)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
INPUTS = {  # Of cases that do not train with X. TensorFlow makes a tensor only when the strategy is there.
    "a_mean_over_what_is_no_padding": lambda: np.full(X.shape, 2),
    "ragged_rows": lambda: tf.RaggedTensor.from_tensor(X, lengths=np.arange(48) % 6 + 1),
}
case = CASES = NamedCases()


def small(*more, name=None):
    return keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="relu"), *more, layers.Dense(4)], name=name)


def similarities(z):
    return ops.matmul(z, ops.transpose(z))


def cross_entropies(logits):
    return keras.losses.sparse_categorical_crossentropy(ops.arange(ops.shape(logits)[0]), logits, from_logits=True)


class OwnStep(keras.Model):
    """A model with a `train_step` of its own."""

    def __init__(self, loss=lambda model, x, y, z: ops.mean((z - y) ** 2), change=None, before=None, **kwargs):
        super().__init__(**kwargs)
        self.net, self.loss_of, self.change, self.before = small(), loss, change, before
        self.drop = layers.Dropout(0.5)
        self.rows = self.add_weight(shape=(16, 4), initializer="zeros", trainable=False, name="rows")
        self.mean = self.add_weight(shape=(4,), initializer="zeros", trainable=False, name="mean")
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen", dtype="int32")
        self.build((None, 6))

    def call(self, x, training=False):
        return self.net(x, training=training)

    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            z = self.net(x, training=True)
            loss = self.loss_of(self, x, y, z)
        return z, loss, tape.gradient(loss, self.net.trainable_variables)

    def train_step(self, data):
        x, y = data
        z, loss, gradients = self.gradients(x, y)
        if self.change:
            gradients = self.change(gradients)
        if self.before:
            gradients = self.before(self, x, y, z, gradients) or gradients
        self.optimizer.apply(gradients, self.net.trainable_variables)
        return {"loss": loss}


def own(name, **kwargs):
    model = OwnStep(name=name, **kwargs)
    model.compile(keras.optimizers.SGD(0.01))
    return model


def changed_by(name, layer):
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4), layer, layers.Dense(1)], name=name)
    model.compile("sgd", "mse")
    return model
