"""Values on the device of the chief: arguments of the groups' functions, their results, and constants for other tasks."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import patches

DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"
_TASK = DEVICE.rpartition("/")[0]


def install() -> None:
    """Makes all constants on the chief first from now on, in eager execution. Calling it again does nothing.

    TensorFlow copies a new constant to the device of another task while it holds Python's lock. If that task is stopped, no
    other thread of the chief runs: none that would give it up. It copies the input of an operation without the lock.
    """
    patches.EAGER_CONSTANT.patch(_convert)


def _convert(original: Callable[..., Any], value: Any, ctx: Any, dtype: Any = None) -> Any:
    is_elsewhere = ctx.device_name and not ctx.device_name.startswith((_TASK, "/job:localhost/"))
    if not is_elsewhere or isinstance(value, tf.Tensor):
        return original(value, ctx, dtype)
    with tf.device(DEVICE):
        # TensorFlow keeps one tensor for each number. If two groups of a worker copied it there at the same time, the second
        # would use the copy of the first before it has arrived.
        here = tf.identity(original(value, ctx, dtype))
    return tf.identity(here)


def constant(value: Any, dtype: Any = None) -> Any:
    """Returns a constant on the chief, to call a function of a worker with.

    In the thread of a group, TensorFlow would make it for the worker.
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
