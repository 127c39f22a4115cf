"""Waits in a function that runs on a task of the cluster: until other calls have changed a variable there."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import run_independently

FIRST_SECONDS, GROWTH, MOST_SECONDS = 0.0005, 1.3, 0.01
"""A wait looks again after 0.5 ms, then after 1.3 times as long each time, up to 10 ms.

So it ends at most a third later than it could, and a long wait costs little processor time.
"""


def wait_while(condition: Callable[[], Any], seconds: Any, after: Sequence[Any]) -> Any:
    """Waits, on the present device, as long as a condition holds, and not longer than some seconds.

    Somebody may set the clock meanwhile: set back it prolongs no wait, because the pauses count too.

    Args:
        condition: returns a bool scalar. It has to read variables with `NamedVariable.read_now`.
        seconds: the most seconds to wait, scalar.
        after: tensors that are computed before the wait begins.

    Returns:
        A scalar that is computed when the wait is over.
    """
    latest = now(after) + tf.cast(seconds, tf.float64)

    def goes_on(pause: Any, paused: Any) -> Any:
        return condition() & (tf.timestamp() < latest) & (paused < tf.cast(seconds, tf.float64))

    def body(pause: Any, paused: Any) -> Any:
        with tf.control_dependencies([_sleep(pause)]):
            return tf.minimum(GROWTH * pause, MOST_SECONDS), paused + pause

    begin = tf.where(latest > 0, tf.constant(FIRST_SECONDS, tf.float64), 0.0)  # Depends on `latest`, so on `after`.
    return tf.while_loop(goes_on, body, [begin, tf.zeros([], tf.float64)], parallel_iterations=1)[0]


def now(after: Sequence[Any] = ()) -> Any:
    """Returns the moment, in seconds, at which the tensors `after` have been computed, float64 scalar."""
    with tf.control_dependencies(after):
        moment = tf.timestamp()
    run_independently(moment.op)  # Otherwise it would wait for the moments of other devices.
    return moment


def _sleep(seconds: Any) -> Any:
    types = {"output_types": [tf.int64], "output_shapes": [[]]}
    zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
    numbers = tf.raw_ops.RangeDataset(start=zero, stop=one, step=one, **types)
    # It sleeps before its element and before its end.
    microseconds = tf.cast(seconds * 1e6 / 2, tf.int64)
    sleeping = tf.raw_ops.SleepDataset(input_dataset=numbers, sleep_microseconds=microseconds, **types)
    (slept,) = tf.raw_ops.DatasetToSingleElement(dataset=sleeping, **types)
    run_independently(slept.op)
    return slept
