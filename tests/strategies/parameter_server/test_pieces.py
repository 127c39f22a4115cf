"""What each shard of a variable gets of the arguments of an update."""

import numpy as np
import pytest
import tensorflow as tf
from server_variables import ROWS, on_ps


@pytest.mark.parametrize("shape", [[6, 4], [None, 4], [6, None], [None, None]])
def test_a_gradient_is_split_also_if_the_step_knows_its_shape_only_when_it_runs(shape):
    kernel = on_ps()
    pieces = tf.function(kernel.for_shards, input_signature=[tf.TensorSpec(shape)], autograph=False)
    assert [each.shape for each in pieces.get_concrete_function().outputs] == [(3, 4), (3, 4)]
    np.testing.assert_array_equal(pieces(tf.constant(ROWS)), np.split(ROWS, 2))
    if shape[0] is None:
        with pytest.raises(tf.errors.InvalidArgumentError):
            pieces(tf.constant(ROWS[:4]))


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), tf.constant(0.5), tf.constant([1.0, 2.0, 3.0, 4.0]), None])
def test_anything_else_is_given_to_each_shard(value):
    assert all(piece is value for piece in on_ps().for_shards(value))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_array_is_split_as_a_tensor_is(dtype):
    np.testing.assert_array_equal(on_ps().for_shards(ROWS.astype(dtype)), np.split(ROWS, 2))


@pytest.mark.parametrize("rows", [(4, 1), np.array([4, 1]), np.array([4, 1], np.int32)], ids=["tuple", "int64", "int32"])
def test_rows_that_are_no_tensors_are_split_as_tensors_are(rows):
    first, second = on_ps().for_shards(tf.IndexedSlices(ROWS[:2], rows, (6, 4)))
    assert (first.indices.numpy().tolist(), second.indices.numpy().tolist()) == ([1], [1])
    np.testing.assert_array_equal(tf.convert_to_tensor(first)[1], ROWS[1])
    np.testing.assert_array_equal(tf.convert_to_tensor(second)[1], ROWS[0])
