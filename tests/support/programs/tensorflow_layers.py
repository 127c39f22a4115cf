"""Layers that call TensorFlow's functions on tensors and weights in shards, for split_cases.py."""

import tensorflow as tf
from keras import layers, ops


@tf.custom_gradient
def reversed_gradient(x):
    return tf.identity(x), lambda gradient: -gradient


class Nested(layers.Layer):
    """Calls operations of TensorFlow with functions or nested tensors."""

    def call(self, x):
        x = reversed_gradient(x)
        x = tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.nn.relu(x) * 2.0, lambda: tf.concat([x[:, :4], x[:, 4:]], axis=-1))
        _, x = tf.while_loop(lambda step, _: step < 2, lambda step, y: (step + 1, y * x), (0, tf.ones_like(x[:1]) + x * 0.0))
        x = tf.map_fn(lambda row: row * 0.5, x + 1.0)
        return tf.ensure_shape(tf.py_function(lambda y: tf.tanh(y), [x * 1.5], tf.float32), x.shape)


class OfSparse(layers.Dense):
    def call(self, x):
        return super().call(tf.sparse.from_dense(tf.nn.relu(x)))


class Own(layers.Layer):
    """Multiplies with the result of a function of TensorFlow that has no rule."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], 12))

    def call(self, x):
        return tf.matmul(x, tf.reverse(self.kernel, [0]))


class Plain(layers.Layer):
    """A dense layer in TensorFlow's functions, as its guides write one."""

    def build(self, shape):
        self.w = self.add_weight(name="kernel", shape=(shape[-1], 12))
        self.b = self.add_weight(name="bias", shape=(12,), initializer="zeros")

    def call(self, x):
        self.add_loss(0.01 * (tf.nn.l2_loss(self.w) + tf.reduce_sum(tf.square(self.w))))
        return tf.nn.relu(PLAIN[self.name](x, self.w) + self.b)


PLAIN = {
    "matmul": tf.matmul,
    "transposed": lambda x, w: tf.matmul(x, tf.transpose(w), transpose_b=True),
    "tensordot": lambda x, w: tf.tensordot(x, w, [[-1], [0]]),
    "einsum": lambda x, w: tf.einsum("bi,io->bo", x, tf.multiply(w, 2.0)),
    "dot": lambda x, w: ops.dot(x, ops.exp(w) - w**2),
    "operator": lambda x, w: x @ (abs(w) * -w),
    "value": lambda x, w: x @ (2.0 * w.value / 3.0 - w.value**2) + (1.0 + ops.softmax(w)[0]),
    "gate": lambda x, w: ops.transpose(w.value @ ops.transpose(x) * ops.sigmoid(w)[:, :1]),
}


def plain(x):
    for name in PLAIN:
        x = Plain(name=name)(x)
    return x


class LookedUp(layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(name="table", shape=(32, 8))

    def call(self, numbers):
        return tf.nn.embedding_lookup(self.table, numbers) + tf.gather(self.table, numbers)
