"""What a trial of a step compares: numbers of its updates."""

from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from tfdist.strategies.keras_hooks import user_functions
from tfdist.strategies.keras_hooks.checks.step_trial import changing_operations, nodes_of, summary
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica, entered
from tfdist.strategies.private_api.ring_sums import OF_REPLICA, RingSums


def test_rows_of_a_table_are_summed_up_as_the_whole_table_without_making_it():
    slices = tf.IndexedSlices(tf.random.normal([4, 3, 2], seed=1), tf.constant([5, 2, 5, 9000]), tf.constant([10_000, 3, 2]))
    (projections, (norm,)), (expected, (expected_norm,)) = summary([slices]), summary([tf.convert_to_tensor(slices)])
    np.testing.assert_allclose(projections, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm, expected_norm, rtol=1e-5)
    (projections, (norm,)) = summary([tf.IndexedSlices(tf.ones([1, 2]), [2**40], [2**41, 2])])
    assert np.isfinite(projections).all() and norm == np.sqrt(np.float32(2))


def test_a_step_of_many_updates_has_one_trace_of_the_projection():
    user_functions.install()

    @tf.function(autograph=False)
    def trial(value):
        with entered(Replica(None, 0, tf.constant(1.0), recorded=[])):
            return summary([value, value[:, 0], tf.cast(value, tf.float16)])

    assert [node.op for node in nodes_of(trial.get_concrete_function(tf.zeros([4, 2])))].count("Cos") == 1


def test_recurrent_layers_on_gpus_change_nothing():
    kinds = ("MatMul", "CudnnRNNV3", "CudnnRNNBackpropV3", "AssignVariableOp")
    assert changing_operations([SimpleNamespace(op=kind, name="") for kind in kinds]) == {"AssignVariableOp"}


def test_only_collectives_among_the_tasks_of_one_replica_change_nothing():
    @tf.function
    def both(value):
        return RingSums("CPU:0", 2, name=OF_REPLICA).sum(value), RingSums("CPU:0", 2).gather(value)

    assert changing_operations(nodes_of(both.get_concrete_function(tf.zeros(2)))) == {"CollectiveGatherV2"}
