"""Layers that slice, broadcast and look up their weights, as those for positions of Keras Hub."""

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
