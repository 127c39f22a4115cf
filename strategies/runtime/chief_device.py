"""Values on the device of the chief: arguments of the groups' functions, their results, and constants for other tasks."""

import numbers
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
        here = tf.identity(original(value, ctx, dtype))  # See `constant`.
    return tf.identity(here)


def constant(value: Any, dtype: Any = None) -> Any:
    """Returns a constant on the chief, to call a function of a worker with.

    In the thread of a group, TensorFlow would make it for the worker.

    TensorFlow keeps one tensor for each Python number, with one copy on each task. Calls must not share it: one would use the
    copy of another before it has arrived, and the first call after an update of the cluster frees the copy of those before.
    """
    with tf.device(DEVICE):
        kept = tf.constant(value, dtype)
        return tf.identity(kept) if isinstance(value, numbers.Number) else kept


def fetched(value: Any) -> Any:
    """Copies a tensor from another task to the chief, where it stays if that task ends. Returns any other value as it is."""
    with tf.device(DEVICE):
        return tf.identity(value) if isinstance(value, tf.Tensor) else value


def value_of(variable: Any) -> Any:
    """Returns the value of a variable of the chief, to call a function of a worker with. See `constant`."""
    with tf.device(DEVICE):
        return variable.read_value()
