"""Gradients of `tf.py_function`, which the worker of a step cannot compute.

TensorFlow places the call of the function on the chief, which has it, but not the call that computes its gradient.
"""

_UNKNOWN = "Could not find callback with key=pyfunc"


def check_error(error: Exception) -> None:
    """Raises ValueError if a call has failed because it differentiates a `tf.py_function`."""
    if _UNKNOWN in str(error):
        raise ValueError(
            "a step computes the gradient of a tf.py_function, which only the chief can call, not a worker; write the function "
            "with keras.ops or operations of TensorFlow (in metrics, and where no gradient is needed, tf.py_function works)"
        ) from error
