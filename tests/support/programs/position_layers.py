"""Layers that slice, broadcast and look up their weights, as those for positions of Keras Hub, or assign them."""

import keras
from keras import layers, ops


@keras.saving.register_keras_serializable()
class Positions(layers.Layer):
    """Adds the first rows of a table: a slice of it if there is a token in front of the sequence, else rows that it looks up."""

    def __init__(self, rows, token, **kwargs):
        super().__init__(**kwargs)
        self.rows, self.token = rows, token

    def build(self, shape):
        self.table = self.add_weight(shape=(self.rows, shape[-1]), initializer="glorot_uniform", name="table")
        self.first = (
            self.add_weight(shape=(1, 1, shape[-1]), initializer="glorot_uniform", name="token") if self.token else None
        )

    def call(self, x):
        if self.token:
            x = ops.concatenate([ops.broadcast_to(self.first, (ops.shape(x)[0], 1, x.shape[-1])), x], axis=1)
        if self.token:
            table = ops.slice(ops.convert_to_tensor(self.table), (0, 0), (x.shape[1], x.shape[2]))
        else:
            table = ops.take(self.table, ops.arange(x.shape[1]), axis=0)
        return x + ops.broadcast_to(table, ops.shape(x))

    def get_config(self):
        return {**super().get_config(), "rows": self.rows, "token": self.token}


@keras.saving.register_keras_serializable()
class BeginsByTheBatch(layers.Layer):
    """Assigns a weight, which an optimizer updates, too, the mean of the first batch."""

    def build(self, shape):
        self.shift = self.add_weight(shape=shape[1:], initializer="zeros", name="shift")
        self.has_begun = self.add_weight(shape=(), initializer="zeros", trainable=False, name="has_begun")

    def call(self, x, training=False):
        shifted = x - self.shift
        if training:
            self.shift.assign(self.shift + ops.cast(ops.equal(self.has_begun, 0), x.dtype) * ops.mean(x, axis=0))
            self.has_begun.assign(1.0)
        return shifted
