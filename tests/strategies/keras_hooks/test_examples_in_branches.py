"""Branches and loops of a step by values that it computes from the examples of its batch."""

import keras
import pytest
import tensorflow as tf
from keras import ops

from tfdist.strategies.keras_hooks.checks.examples_in_branches import decides_by_examples
from tfdist.strategies.model_parallel import nested
from tfdist.strategies.private_api import patches

VARIABLE = keras.Variable(1.0)


def cond(value):
    return lambda x: ops.cond(value(x) > 0, lambda: 2 * x, lambda: x)


def loop(ends):
    return lambda x: ops.while_loop(lambda n, m, z: ends(n, m), lambda n, m, z: (n + 1, ops.max(z), z / 2), (0, 0.0, x))[2]


def of_each(x):
    return ops.map(lambda row: ops.cond(row[0] > 0, lambda: 2 * row, lambda: row), x)


def ctc(x):
    labels, lengths = ops.cast(x > 0, "int32"), ops.sum(ops.cast(x > 0, "int32"), axis=1) + 1
    return ops.ctc_loss(labels, ops.stack([x, x, x], axis=-1), lengths, 0 * lengths + 4)


def gradients(of):
    def gradients_of(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = of(x)
        return tape.gradient(y, x)

    return gradients_of


@tf.custom_gradient
def own_gradient(x):
    return x, lambda gradient: ops.cond(ops.mean(x) > 0, lambda: 2 * gradient, lambda: gradient)


class Doubling(keras.layers.Layer):
    state_size = output_size = 1

    def call(self, x, states):
        return x + 2 * states[0], [2 * states[0]]


def asserted(x):
    with tf.control_dependencies([tf.debugging.assert_less(x, 9.0)]):
        return tf.identity(x)


BY_EXAMPLES = {
    "a branch": cond(ops.mean),
    "a loop": loop(lambda n, m: ops.logical_and(n < 5, m < 1)),
    "gradients of a branch": gradients(cond(ops.mean)),
    "a branch in a gradient": gradients(own_gradient),
}
OTHERS = {
    "a branch by a variable": cond(lambda x: VARIABLE),
    "a branch by the number of examples": cond(lambda x: ops.shape(x)[0]),
    "a loop by a number": loop(lambda n, m: n < 5),
    "a branch for each example": of_each,
    "a loss of Keras with branches": ctc,
    "gradients of a recurrent layer": gradients(lambda x: keras.layers.RNN(Doubling())(x[..., None])),
    "an assertion": asserted,
}


def found(branches):
    function = tf.function(lambda x, draw: branches(x), autograph=False).get_concrete_function(
        tf.TensorSpec([None, 4]), tf.TensorSpec([], tf.int32)
    )
    return decides_by_examples(function, 1)


@pytest.mark.parametrize("name", [*BY_EXAMPLES, *OTHERS])
def test_branches_and_loops_by_examples_are_found_and_no_others(name):
    assert found({**BY_EXAMPLES, **OTHERS}[name]) == (name in BY_EXAMPLES)


@pytest.mark.parametrize("name", ["a branch", "a loss of Keras with branches"])
def test_the_same_holds_where_functions_of_tensorflow_are_replaced(name, monkeypatch):
    for point in patches.NESTED_OPERATIONS.values():
        monkeypatch.setattr(point.owner, point.name, point.original)
        monkeypatch.setattr(point, "_replacements", [])
    nested.install()
    assert found({**BY_EXAMPLES, **OTHERS}[name]) == (name in BY_EXAMPLES)
