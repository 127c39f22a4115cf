"""Rows of a table whose gradients are the same rows on every replica."""

import pytest
import tensorflow as tf

from tfdist.strategies.keras_hooks import same_rows

POSITIONS = tf.Variable([0, 2, 1], dtype=tf.int32)
ROWS = {
    "positions": (lambda x: tf.range(3), True),
    "positions in a variable": (lambda x: tf.reshape(POSITIONS + 0, [-1]), True),
    "positions up to the length of the sequences": (lambda x: tf.range(tf.shape(x)[1]), True),
    "rows that examples look up": (lambda x: tf.reshape(x, [-1])[:3], False),
    "a row for each example": (lambda x: tf.range(tf.shape(x)[0]), False),
    "the number of examples among others": (lambda x: tf.concat([tf.shape(x), [0]], axis=0), False),
    "random rows": (lambda x: tf.random.uniform([3], maxval=4, dtype=tf.int32), False),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_the_same_that_depend_on_no_example(name):
    rows, expected = ROWS[name]
    table = tf.Variable(tf.ones([4, 2]))
    found = []

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int32)])
    def step(x):
        def inner(i):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, rows(x)))
            gradient = tape.gradient(loss, table)
            gradient = tf.IndexedSlices(tf.ensure_shape(gradient.values, [3, 2]), gradient.indices, gradient.dense_shape)
            found.append(same_rows.are_same(gradient))
            return i + 1

        inner(0)
        tf.while_loop(lambda i: i < 1, lambda i: (inner(i),), [0])

    step.get_concrete_function()
    assert found == [expected, expected]


def test_other_gradients_and_steps_that_run_eagerly_are_not_looked_at():
    slices = tf.IndexedSlices(tf.ones([3, 2]), tf.range(3), [4, 2])
    assert not same_rows.are_same(slices) and not same_rows.are_same(tf.ones([3])) and not same_rows.are_same(None)
