"""Values on the chief's own device: those that it gives to a group's function, and those that it gets back."""

from typing import Any

import tensorflow as tf

DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"


def constant(value: Any, dtype: Any = None) -> Any:
    """A constant to call a worker's function with.

    TensorFlow would make it on the worker in the thread of a group, and hold Python's lock until it is there: a worker that is
    stopped would stop the chief.
    """
    with tf.device(DEVICE):
        return tf.constant(value, dtype)


def fetched(value: Any) -> Any:
    """A tensor that another task has, on the chief, where it stays when that task is gone; anything else as it is."""
    with tf.device(DEVICE):
        return tf.identity(value) if isinstance(value, tf.Tensor) else value


def value_of(variable: Any) -> Any:
    """The value of a variable of the chief, to call a worker's function with: it goes there with the call, as a `constant`."""
    with tf.device(DEVICE):
        return variable.read_value()
