"""Rows of a table whose gradients are the same rows on every replica."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas import same_rows
from tfdist.strategies.model_parallel.task_span import TaskSpan
from tfdist.strategies.private_api.ring_sums import OF_REPLICA, RingSums
from tfdist.strategies.variable_base import rows_by_part

POSITIONS = tf.Variable([0, 2, 1], dtype=tf.int32)
GENERATOR = keras.random.SeedGenerator(1)
ROWS = {
    "positions": (lambda x: tf.range(3), True),
    "positions in a variable": (lambda x: tf.reshape(POSITIONS + 0, [-1]), True),
    "positions up to the length of the sequences": (lambda x: tf.range(tf.shape(x)[1]), True),
    "positions up to the last size": (lambda x: tf.range(tf.shape(x)[-1]), True),
    "rows that examples look up": (lambda x: tf.reshape(x, [-1])[:3], False),
    "a row for each example": (lambda x: tf.range(tf.shape(x)[0]), False),
    "the number of examples among others": (lambda x: tf.concat([tf.shape(x), [0]], axis=0) + 0, False),
    "random rows": (lambda x: tf.random.uniform([3], maxval=4, dtype=tf.int32), False),
    "random rows of Keras": (lambda x: keras.random.randint([3], 0, 4, seed=GENERATOR), False),
    "positions from a random one on": (lambda x: tf.range(3) + keras.random.randint([], 0, 2, seed=GENERATOR), False),
    "random rows that are always the same": (lambda x: keras.random.randint([3], 0, 4, seed=1), True),
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
            found.extend(kind == same_rows.SAME for _, kind in same_rows.pieces_of(gradient, table))
            return i + 1

        inner(0)
        tf.while_loop(lambda i: i < 1, lambda i: (inner(i),), [0])

    step.get_concrete_function()
    assert found == [expected, expected]


LOOKUPS = {
    "one after the other": lambda table, x: (table(x), table(tf.constant([3, 3, 1]))),
    "together": lambda table, x: table(tf.concat([[3, 3, 1], tf.reshape(x, [-1])], axis=0)),
    "up to the length of the sequences": lambda table, x: (table(x), table(tf.range(tf.shape(x)[1]))),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_gradient_is_taken_apart_into_rows_that_are_the_same_and_others(name):
    layer = keras.layers.Embedding(4, 2)
    layer.build()

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def step(x):
        with tf.GradientTape() as tape:
            found = tf.nest.flatten(LOOKUPS[name](layer, x))
            loss = tf.add_n([tf.reduce_sum(rows**2 * (1.0 + k)) for k, rows in enumerate(found)])
        gradient = tape.gradient(loss, layer.embeddings._value)
        (same, kind), (others, other_kind) = same_rows.pieces_of(gradient, layer.embeddings)
        assert (kind, other_kind) == (same_rows.SAME, same_rows.OF_EXAMPLES) and same.values.shape.is_fully_defined()
        whole = same_rows.joined([same, others])
        return *(tf.convert_to_tensor(slices) for slices in (gradient, whole)), same.values, others.indices

    expected, whole, same, others = step(tf.constant([[0, 2, 0], [0, 0, 2]]))
    np.testing.assert_allclose(whole, expected, rtol=1e-6)
    assert same.shape == ((4, 2) if name == "up to the length of the sequences" else (3, 2))
    np.testing.assert_array_equal(others, [0, 2, 0, 0, 0, 2])


def test_rows_of_an_unknown_number_are_those_of_examples_if_one_may_be_twice_among_them():
    table = tf.Variable(tf.ones([4, 2]))

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, tf.range(tf.shape(x)[1]) // 2))
        assert [kind for _, kind in same_rows.pieces_of(tape.gradient(loss, table), table)] == [same_rows.OF_EXAMPLES]

    step.get_concrete_function()


def test_rows_that_a_lookup_of_sparse_tensors_has_once_come_once_after_the_sum():
    table = tf.Variable(tf.ones([4, 2]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def step(x):
        with tf.GradientTape() as tape:
            rows, numbers = tf.unique(x)
            loss = tf.reduce_sum(tf.gather(tf.gather(table, rows), numbers))
        ((slices, kind),) = same_rows.pieces_of(tape.gradient(loss, table), table)
        assert kind == same_rows.DISTINCT
        once = same_rows.each_once(same_rows.joined([slices, slices]))
        return once.indices, once.values

    rows, values = step(tf.constant([3, 1, 3]))
    np.testing.assert_array_equal(rows, [3, 1])
    np.testing.assert_allclose(values, [[4.0, 4.0], [2.0, 2.0]])


@pytest.mark.parametrize(
    ("rows", "are_positions"),
    [
        (lambda x: tf.range(3), True),
        (lambda x: tf.range(tf.shape(x)[1]), True),
        (lambda x: tf.constant([2, 0]), True),
        (lambda x: tf.constant([2, 2]), False),
        (lambda x: tf.range(tf.shape(x)[1]) // 2, False),
        (lambda x: tf.unique(tf.reshape(x, [-1]))[0], False),
    ],
)
def test_each_part_of_a_table_knows_positions_and_rows_that_come_once(rows, are_positions):
    table = tf.Variable(tf.ones([4, 2]))

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def step(x):
        numbers = rows(x)
        parts = [local + begin for (_, local), begin in zip(rows_by_part(numbers, [0, 2, 4]), (0, 2), strict=True)]
        assert [same_rows.are_positions(each) for each in parts] == [are_positions] * 2
        slices = tf.IndexedSlices(tf.ones([tf.size(numbers), 2]), tf.concat(parts, axis=0), [4, 2])
        kinds = {kind for _, kind in same_rows.pieces_of(slices, table)}
        assert kinds == {same_rows.DISTINCT} or numbers.op.type != "Unique"
        span = TaskSpan(RingSums("", 2, name=OF_REPLICA), position=0, tasks=2, meet=lambda name, seconds: None)
        for own in (parts, parts[:1]):  # Other tasks have other parts.
            indices = tf.concat(own, axis=0)
            values, indices = span.concatenate([tf.ones([tf.size(indices), 2]), indices])
            kinds = {kind for _, kind in same_rows.pieces_of(tf.IndexedSlices(values, indices, [4, 2]), table)}
            assert (kinds == {same_rows.DISTINCT}) == (numbers.op.type == "Unique")

    step.get_concrete_function()


def test_other_gradients_and_steps_that_run_eagerly_are_not_looked_at():
    slices = tf.IndexedSlices(tf.ones([3, 2]), tf.range(3), [4, 2])
    for gradient in (slices, tf.ones([3]), None):
        assert same_rows.pieces_of(gradient, None) == [(gradient, same_rows.OF_EXAMPLES)]
