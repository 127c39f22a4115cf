"""Waits of the chief beside calls of worker groups, and the lock of the global parameters on a ps."""

import threading
import time

import tensorflow as tf
from tensorflow.python.eager import context, executor

PS = "/job:ps/replica:0/task:0/device:CPU:0"
LIMIT = 60.0
"""Limit of one call of a group, in seconds."""


def wait_for(condition):
    """Waits until `condition()` is true. Raises TimeoutError after LIMIT."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {LIMIT:.0f} s")
        time.sleep(0.01)


def called_beside(function, *arguments):
    """Calls `function` with another executor: while it waits for a task, the task still answers other calls. Use a thread."""
    with context.executor_scope(executor.new_executor(enable_async=False, enable_streaming_enqueue=False)):
        return function(*arguments)


class Queue:
    """A queue of numbers on a ps."""

    def __init__(self, name):
        self.name = name

    def _do(self, operation, **arguments):
        with tf.device(PS):
            handle = tf.raw_ops.FIFOQueueV2(component_types=[tf.int32], shapes=[[]], shared_name=self.name)
            return operation(handle=handle, **arguments)

    def put(self):
        return self._do(tf.raw_ops.QueueEnqueueV2, components=[tf.constant(1)])

    def take(self):
        """Takes a number; waits while the queue is empty."""
        return self._do(tf.raw_ops.QueueDequeueV2, component_types=[tf.int32])


class HeldParameters:
    """Holds the lock of the first shard of the global parameters, so that the ps replies to no push in the meantime."""

    def __init__(self, block):
        self._shard = block.shards[0][0]
        self._held, self._release = Queue("held"), Queue("release")

    def __enter__(self):
        @tf.function(autograph=False)
        def hold():
            with tf.device(self._shard.device):
                lock = tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2(shared_name=self._shard.lock))
            with tf.control_dependencies([lock]):
                held = self._held.put()
            with tf.control_dependencies([held]):
                permit = self._release.take()
            with tf.control_dependencies(tf.nest.flatten(permit)), tf.device(self._shard.device):
                tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

        self._thread = threading.Thread(target=called_beside, args=(hold,), daemon=True)
        self._thread.start()
        self._held.take()
        return self

    def __exit__(self, *_):
        self._release.put()
        self._thread.join(LIMIT)
