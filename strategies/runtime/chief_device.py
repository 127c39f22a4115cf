"""Values on the device of the chief: arguments of the groups' functions, and their results."""

from typing import Any

import tensorflow as tf

DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"


def constant(value: Any, dtype: Any = None) -> Any:
    """Returns a constant on the chief, to call a function of a worker with.

    In the thread of a group, TensorFlow would make it on the worker and hold Python's lock until it is there: a worker that is
    stopped would stop the chief.
    """
    with tf.device(DEVICE):
        return tf.constant(value, dtype)


def fetched(value: Any) -> Any:
    """Copies a tensor from another task to the chief, where it stays if that task ends. Returns any other value as it is."""
    with tf.device(DEVICE):
        return tf.identity(value) if isinstance(value, tf.Tensor) else value


def value_of(variable: Any) -> Any:
    """Returns the value of a variable of the chief, to call a function of a worker with. See `constant`."""
    with tf.device(DEVICE):
        return variable.read_value()
