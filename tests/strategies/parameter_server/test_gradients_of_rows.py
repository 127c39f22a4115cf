"""Gradients of what is looked up on ps tasks count once, also where a function is computed again for them, or is called."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from server_variables import ROWS, on_ps

from tfdist.strategies.parameter_server import fused_reads, optimizer


def looked_up(table):
    return lambda ones, numbers: tf.gather(table, numbers) * ones


def tied(table):
    return lambda ones, numbers: tf.matmul(tf.gather(table, numbers) * ones, table, transpose_b=True)


def gradient_of(compute, table, rounded):
    """Returns the gradient of what a step computes."""

    @tf.function(autograph=False)
    def step():
        with fused_reads.reading([], rounded) as reads:
            reads.begin_replica(("/device:CPU:0",))
            with tf.GradientTape() as tape:
                result = compute()
            return tf.convert_to_tensor(tape.gradient(result, table))

    return step().numpy()


def gradient(table, call, rounded=False):
    """Returns the gradient of what a step computes of rows 1, 4 and 1, and computes again for the gradient."""
    return gradient_of(lambda: tf.recompute_grad(call(table))(tf.ones([]), tf.constant([1, 4, 1])), table, rounded)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("call", [looked_up, tied])
def test_a_layer_that_is_computed_again_for_its_gradients_counts_each_once(call, shards, rounded):
    np.testing.assert_array_equal(gradient(on_ps(shards), call, rounded), gradient(tf.Variable(ROWS), call))


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_function_with_a_gradient_of_its_own_knows_the_table_of_its_rows_as_one(shards, rounded):
    table = on_ps(shards)

    @tf.custom_gradient
    def looked_up_twice(x):
        def gradient(change, variables=None):
            return tf.reduce_sum(change * table.sparse_read([1, 4])), [tf.IndexedSlices(3.0 * change, [1, 4], [6, 4])]

        return x * table.sparse_read([1, 4]), gradient

    expected = np.zeros_like(ROWS)
    expected[[1, 4]] = 3
    np.testing.assert_array_equal(gradient_of(lambda: looked_up_twice(tf.constant(2.0)), table, rounded), expected)


@pytest.mark.parametrize("shards", [1, 2])
def test_rows_that_a_sparse_tensor_names_have_one_gradient_each_as_in_one_process(shards):
    """Optimizers square the gradients of a row one by one."""
    variable, numbers = keras.Variable(ROWS), tf.sparse.from_dense([[5, 1, 5], [1, 0, -2]])
    variable._value = on_ps(shards)
    with tf.GradientTape() as tape:
        found = optimizer._take(None, variable, numbers, axis=0)
        loss = tf.reduce_sum(found**2)
    np.testing.assert_array_equal(found, ops.take(tf.constant(ROWS), numbers, axis=0))
    gradient = tape.gradient(loss, variable._value)
    assert sorted(gradient.indices.numpy()) == [0, 1, 4, 5]
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient), 2 * ROWS * [[1], [2], [0], [0], [1], [2]])


def test_a_gradient_of_rows_through_a_function_is_refused():
    table = on_ps(2)
    forward = tf.function(lambda numbers: tf.reduce_sum(table.sparse_read(numbers)), autograph=False)
    with (
        pytest.raises(
            ValueError, match=r"table:0 is sharded over 2 ps tasks, and a tf\.function .* open the tape inside of it"
        ),
        tf.GradientTape() as tape,
    ):
        tape.gradient(forward(tf.constant([1, 4])), table)


def test_a_function_may_read_what_is_not_trained_in_a_tape():
    frozen, scale = on_ps(2, trainable=False), tf.Variable(2.0)

    @tf.function(autograph=False)
    def forward(numbers):
        return scale * (tf.reduce_sum(frozen.sparse_read(numbers)) + tf.reduce_sum(frozen.value()))

    with tf.GradientTape() as tape:
        result = forward(tf.constant([1, 4]))
    assert float(tape.gradient(result, scale)) == ROWS[[1, 4]].sum() + ROWS.sum()
