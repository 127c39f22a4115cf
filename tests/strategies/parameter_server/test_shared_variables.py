"""A variable that the replicas of a group share saves, restores and writes what the variable inside does: all of its shards."""

import numpy as np
import pytest
import tensorflow as tf
from server_variables import ROWS, on_ps

from tfdist.strategies.coordinator.extended import SharedByReplicas
from tfdist.strategies.keras_hooks.replicas import replica_context


def shared(shards):
    inner = on_ps(shards)
    return SharedByReplicas(None, inner, tf.VariableAggregation.MEAN), inner


@pytest.mark.parametrize("shards", [1, 2])
def test_a_checkpoint_holds_all_rows_and_gives_them_back(tmp_path, shards):
    variable, inner = shared(shards)
    path = tf.train.Checkpoint(variable=variable).save(str(tmp_path / "checkpoint"))
    inner.assign(tf.zeros([6, 4]))
    tf.train.Checkpoint(variable=variable).restore(path).assert_consumed()
    np.testing.assert_array_equal(inner.numpy(), ROWS)
    plain = tf.Variable(tf.zeros([6, 4]))
    tf.train.Checkpoint(variable=plain).restore(path)
    np.testing.assert_array_equal(plain.numpy(), ROWS)


def test_a_restore_is_an_assignment_of_the_variable_inside():
    """Of hogwild's, the worker groups get it only so."""
    variable, inner = shared(1)
    restored = []
    inner._restore_from_tensors = restored.append
    variable._restore_from_tensors({"VARIABLE_VALUE": tf.zeros([6, 4])})
    assert [list(each) for each in restored] == [["VARIABLE_VALUE"]]


@pytest.mark.parametrize("shards", [1, 2])
def test_scattered_updates_and_lookups_reach_the_rows_of_all_shards(shards):
    variable, _ = shared(shards)
    variable.scatter_update(tf.IndexedSlices(tf.ones([2, 4]), tf.constant([1, 5])))
    variable.scatter_nd_add([[0], [4]], tf.ones([2, 4]))
    expected = ROWS.copy()
    expected[[1, 5]] = 1
    expected[[0, 4]] += 1
    np.testing.assert_array_equal(variable.numpy(), expected)
    np.testing.assert_array_equal(variable.gather_nd([[5], [0]]), expected[[5, 0]])


@pytest.mark.parametrize(
    "branch",
    [
        lambda assign: tf.cond(tf.constant(True), assign, lambda: 0),
        lambda assign: tf.while_loop(lambda n: n < 2, lambda n: [n + 1 + assign()], [0]),
    ],
)
def test_an_assignment_in_a_branch_or_loop_is_refused_by_name(branch):
    variable, _ = shared(2)

    @tf.function(autograph=False)
    def step():
        replica = replica_context.Replica(None, 0, tf.constant(0.5), graph=tf.compat.v1.get_default_graph())
        with replica_context.entered(replica):
            branch(lambda: (variable.assign(tf.zeros([6, 4])), 0)[1])

    with pytest.raises(ValueError, match=r"a step assigns table:0 in a tf\.cond, .* or a loop .* groups of one worker"):
        step()
