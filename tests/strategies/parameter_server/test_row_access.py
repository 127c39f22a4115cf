"""A variable that is sharded by rows takes what TensorFlow's own takes, and refuses the same: nothing is half written."""

import numpy as np
import pytest
import tensorflow as tf
from server_variables import ROWS, on_ps

from tfdist.strategies.parameter_server import fused_reads
from tfdist.strategies.variable_base import InShards


def after(call, variable, traced):
    traced_call = tf.function(lambda: (call(variable), None)[1], autograph=False)
    traced_call() if traced else call(variable)
    return variable.numpy()


def slices(values, rows):
    return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(rows))


ONES = [1.0] * 4

WRITES = {
    "v[-1]": lambda v: v[-1].assign(ONES),
    "v[2:5]": lambda v: v[2:5].assign(tf.ones([3, 4])),
    "v[4:]": lambda v: v[4:].assign(tf.ones([2, 4])),
    "v[::-2]": lambda v: v[::-2].assign(tf.reshape(tf.range(12.0), [3, 4])),
    "v[...]": lambda v: v[...].assign(tf.ones([6, 4])),
    "v[1:5] of a number": lambda v: v[1:5].assign(7.0),
    "v[:, 1]": lambda v: v[:, 1].assign(tf.range(6.0)),
    "v[4, 2]": lambda v: v[4, 2].assign(9.0),
    "v[2:5, 1:3]": lambda v: v[2:5, 1:3].assign(-tf.ones([3, 2])),
    "v[2:4, ..., 0]": lambda v: v[2:4, ..., 0].assign([5.0, 6.0]),
    "v[i:j]": lambda v: v[tf.constant(2) : tf.constant(5)].assign(tf.ones([3, 4])),
    "v[3:3]": lambda v: v[3:3].assign(tf.ones([0, 4])),
    "scatter_add": lambda v: v.scatter_add(slices([ONES, ONES], [1, 4])),
    "scatter_add of a number": lambda v: v.scatter_add(slices(3.0, [1, 4])),
    "scatter_add of arrays": lambda v: v.scatter_add(tf.IndexedSlices(ROWS[:2], np.array([1, 4]))),
    "scatter_max": lambda v: v.scatter_max(slices([[10.0] * 4] * 2, [1, 4])),
    "scatter_min": lambda v: v.scatter_min(slices([[2.0] * 4] * 2, [1, 4])),
    "scatter_mul": lambda v: v.scatter_mul(slices([[2.0] * 4] * 2, [1, 4])),
    "scatter_div": lambda v: v.scatter_div(slices([[2.0] * 4] * 2, [1, 4])),
    "scatter_nd_update": lambda v: v.scatter_nd_update([[1], [5]], tf.ones([2, 4])),
    "scatter_nd_add": lambda v: v.scatter_nd_add([[1], [1]], tf.ones([2, 4])),
    "scatter_nd_sub": lambda v: v.scatter_nd_sub([[[1]], [[5]]], tf.ones([2, 1, 4])),
    "scatter_nd_max": lambda v: v.scatter_nd_max([[1]], [[9.0] * 4]),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_by_rows_reaches_the_rows_that_tensorflow_s_own_variable_changes(name, traced):
    expected = after(WRITES[name], tf.Variable(ROWS), traced)
    np.testing.assert_array_equal(after(WRITES[name], on_ps(), traced), expected)
    np.testing.assert_array_equal(after(WRITES[name], on_ps(1), traced), expected)


WRONG = {
    "assign of more rows": lambda v: v.assign(tf.ones([8, 4])),
    "assign of fewer rows": lambda v: v.assign(tf.ones([4, 4])),
    "assign_add of more rows": lambda v: v.assign_add(tf.ones([8, 4])),
    "assign of one row": lambda v: v.assign(tf.ones([4])),
    "scatter_add of more slices": lambda v: v.scatter_add(slices([ONES] * 3, [1, 4])),
    "scatter_nd_update of more": lambda v: v.scatter_nd_update([[1], [5]], tf.ones([3, 4])),
    "scatter_nd_update of an element": lambda v: v.scatter_nd_update([[1, 2]], [1.0]),
    "v[6]": lambda v: v[6].assign(ONES),
    "v[4:] of more rows": lambda v: v[4:].assign(tf.ones([3, 4])),
    "v[tf.newaxis]": lambda v: v[tf.newaxis].assign(tf.ones([1, 6, 4])),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_raises_before_a_shard_is_written(name, traced):
    variable = on_ps()
    with pytest.raises((ValueError, NotImplementedError, tf.errors.InvalidArgumentError)):
        after(WRONG[name], variable, traced)
    np.testing.assert_array_equal(variable.numpy(), ROWS)


def test_the_error_names_the_variable_and_both_shapes():
    with pytest.raises(ValueError, match=r"assign of table:0: the variable has the shape \(6, 4\), and the value \(8, 4\)"):
        on_ps().assign(tf.ones([8, 4]))


def test_a_value_whose_rows_are_counted_when_the_function_runs_is_checked_then():
    variable = on_ps()

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def assign(value):
        variable.assign(value)

    with pytest.raises(tf.errors.InvalidArgumentError, match="assign of table:0: the value has not the shape"):
        assign(tf.ones([8, 4]))
    np.testing.assert_array_equal(variable.numpy(), ROWS)
    assign(tf.ones([6, 4]))
    assert variable.numpy().sum() == 24


def test_a_checkpoint_with_more_rows_is_not_restored(tmp_path):
    path = tf.train.Checkpoint(v=tf.Variable(tf.ones([8, 4]))).write(str(tmp_path / "saved"))
    variable = on_ps()
    with pytest.raises(ValueError, match="table:0"):
        tf.train.Checkpoint(v=variable).read(path)
    np.testing.assert_array_equal(variable.numpy(), ROWS)


@pytest.mark.parametrize("indices", [[[1]], [[5, 3], [0, 0]], [[[2], [3]]], [[[2, 1]], [[3, 2]]]])
def test_gather_nd_and_its_gradient_are_those_of_tensorflow_s_own_variable(indices):
    found = []
    for variable in (on_ps(), tf.Variable(ROWS)):
        with tf.GradientTape() as tape:
            value = tf.gather_nd(variable, indices)
            loss = tf.reduce_sum(value**2)
        found.append((value.numpy(), tf.convert_to_tensor(tape.gradient(loss, variable)).numpy()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_a_variable_in_shards_refuses_by_name_what_would_change_its_first_shard_alone():
    variable = InShards(on_ps().shards, [6, 4], "weights")
    with pytest.raises(NotImplementedError, match="assigning a slice of weights cannot work: it is sharded over 2"):
        variable._strided_slice_assign([0], [1], [1], ONES, None, 0, 0, 0, 0, 0)
    with pytest.raises(NotImplementedError, match="scatter_nd_add of weights"):
        variable.scatter_nd_add([[0]], [ONES])
    with pytest.raises(NotImplementedError, match="batch_scatter_update of weights"):
        variable.batch_scatter_update(slices([ONES], [0]))


def test_rows_that_a_vectorized_function_looks_up_have_gradients():
    fused_reads.install()
    table = on_ps()

    @tf.function(autograph=False)
    def gradients():
        with fused_reads.reading([]) as reads:
            reads.begin_replica(("/device:CPU:0",))
            with tf.GradientTape() as tape:
                rows = tf.vectorized_map(lambda row: 2.0 * table.sparse_read(row), tf.constant([1, 4, 1]))
            return rows, tape.gradient(rows, table)

    rows, gradient = gradients()
    np.testing.assert_array_equal(rows, 2.0 * ROWS[[1, 4, 1]])
    expected = np.zeros_like(ROWS)
    np.add.at(expected, [1, 4, 1], 2.0)
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient), expected)
