"""What a trial of a step compares: numbers of its updates."""

from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from tfdist.strategies.keras_hooks.checks.step_trial import changing_operations, summary


def test_rows_of_a_table_are_summed_up_as_the_whole_table_without_making_it():
    slices = tf.IndexedSlices(tf.random.normal([4, 3, 2], seed=1), tf.constant([5, 2, 5, 9000]), tf.constant([10_000, 3, 2]))
    (projections, (norm,)), (expected, (expected_norm,)) = summary([slices]), summary([tf.convert_to_tensor(slices)])
    np.testing.assert_allclose(projections, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm, expected_norm, rtol=1e-5)
    (projections, (norm,)) = summary([tf.IndexedSlices(tf.ones([1, 2]), [2**40], [2**41, 2])])
    assert np.isfinite(projections).all() and norm == np.sqrt(np.float32(2))


def test_recurrent_layers_on_gpus_change_nothing():
    found = [SimpleNamespace(op=name) for name in ("MatMul", "CudnnRNNV3", "CudnnRNNBackpropV3", "AssignVariableOp")]
    assert changing_operations(found) == {"AssignVariableOp"}
