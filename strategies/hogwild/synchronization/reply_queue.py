"""Replies that have arrived on a worker and wait until the group pulls them.

A group that pulls before its reply is there waits in the queue, which costs no processor time. TensorFlow's queues block an
operation, not a thread.
"""

import itertools
import os
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import run_independently

_numbers = itertools.count()

CAPACITY = 8
"""A group has one reply in flight. Replies of calls that have failed may be left in the queue; it must not fill up."""


class ReplyQueue:
    """A queue of replies on each task that runs a function with `put` or `take`.

    Args:
        dtype: dtype of a reply.
        size: number of its values n.
    """

    def __init__(self, dtype: tf.DType, size: int) -> None:
        self._name = f"tfdist/{os.getpid()}/replies/{next(_numbers)}"
        self._types = [tf.float64, tf.float64, dtype]
        self._shapes = [[], [], [size]]

    def put(self, moment: Any, seconds: Any, reply: Any) -> None:
        """Puts a reply, on the present device.

        Args:
            moment: when the group pushed, float64 scalar. It tells this reply from those of calls that have failed.
            seconds: how long the synchronization took, float64 scalar.
            reply: what to add to the local replica, [n].
        """
        tf.raw_ops.QueueEnqueueV2(handle=self._handle(), components=[moment, seconds, reply])

    def take(self, moment: Any, after: Any) -> tuple[Any, Any]:
        """Waits for the reply to the push at `moment`, on the present device, and takes it.

        Args:
            moment: as given to `put`.
            after: a tensor that is computed before.

        Returns:
            The seconds and the reply.
        """
        with tf.control_dependencies([after]):
            begin = tf.constant(-1.0, tf.float64), tf.constant(0.0, tf.float64), tf.zeros([0], self._types[2])

        shapes = (tf.TensorShape([]), tf.TensorShape([]), tf.TensorShape([None]))

        def body(*_: Any) -> Any:
            taken = tf.raw_ops.QueueDequeueV2(handle=self._handle(), component_types=self._types)
            return tuple(map(tf.ensure_shape, taken, shapes))

        _, seconds, reply = tf.while_loop(
            lambda found, *_: tf.not_equal(found, moment), body, begin, shape_invariants=shapes, parallel_iterations=1
        )
        return seconds, tf.ensure_shape(reply, self._shapes[2])

    def destroy(self, device: str) -> None:
        """Frees the queue on a task, if it exists."""
        with tf.device(device):
            tf.raw_ops.DestroyResourceOp(resource=self._handle(), ignore_lookup_error=True)

    def _handle(self) -> Any:
        handle = tf.raw_ops.FIFOQueueV2(
            component_types=self._types, shapes=self._shapes, capacity=CAPACITY, shared_name=self._name
        )
        if not tf.executing_eagerly():
            run_independently(handle.op)
        return handle
