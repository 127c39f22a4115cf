"""Steps that differentiate a `tf.py_function` are told so."""

import pytest
import tensorflow as tf

from tfdist.strategies.coordinator.members import python_gradients
from tfdist.strategies.coordinator.members.recovery import Recovery


def test_the_gradient_of_a_python_function_is_not_taken_for_the_loss_of_a_worker():
    recovery = Recovery.__new__(Recovery)  # Without its threads.
    with pytest.raises(ValueError) as unknown:  # The gradient of a function that this process does not have.
        _differentiate_an_unknown_function()
    error = tf.errors.InvalidArgumentError(None, None, f"Error received from peer: {unknown.value}")
    with pytest.raises(ValueError, match=r"the gradient of a tf\.py_function") as raised:
        recovery._validate_preemption_failure(error)
    assert raised.value.__cause__ is error
    python_gradients.check_error(tf.errors.InvalidArgumentError(None, None, "pyfunc_0 returns 2 values"))


def _differentiate_an_unknown_function():
    from tensorflow.python.ops import script_ops

    script_ops._py_funcs("pyfunc_1000000", None, [])
