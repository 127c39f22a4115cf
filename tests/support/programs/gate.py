"""Lets worker groups wait until the chief lets them continue: queues on a ps, and the lock of a shard there."""

import contextlib
import threading
import time

import tensorflow as tf
from tensorflow.python.eager import context, executor

PS = "/job:ps/replica:0/task:0/device:CPU:0"
LIMIT = 60.0
"""Seconds for one call of a group."""


def wait_for(condition):
    """Waits until `condition()` is true."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {LIMIT:.0f} s")
        time.sleep(0.001)


def called_beside(function, *arguments):
    """Calls `function`, in a thread of its own, so that the tasks that it waits for do what others want meanwhile."""
    with context.executor_scope(executor.new_executor(enable_async=False, enable_streaming_enqueue=False)):
        return function(*arguments)


class Queue:
    """A queue of numbers on `device`; None for that of the function in which it is used."""

    def __init__(self, name, device=PS):
        self.name = name
        self.device = device

    def _do(self, operation, **arguments):
        with tf.device(self.device) if self.device else contextlib.nullcontext():
            handle = tf.raw_ops.FIFOQueueV2(component_types=[tf.int32], shapes=[[]], shared_name=self.name)
            return operation(handle=handle, **arguments)

    def put(self):
        return self._do(tf.raw_ops.QueueEnqueueV2, components=[tf.constant(1)])

    def take(self):
        """Waits while it is empty."""
        return self._do(tf.raw_ops.QueueDequeueV2, component_types=[tf.int32])

    def size(self):
        return int(self._do(tf.raw_ops.QueueSizeV2))


class Gate:
    """What every step of a model passes that calls `pass_through` in its own, for each group of its own."""

    def __init__(self, strategy):
        places = [group.devices[0] for group in strategy.worker_groups]
        self._came, self._permits = ([Queue(name, place) for place in places] for name in ("gate/came", "gate/permits"))
        self._open_for = [0] * len(places)

    def pass_through(self, value):
        """In a step: `value`, once the chief has let the step go on."""
        with tf.control_dependencies([Queue("gate/came", None).put()]):
            permit = Queue("gate/permits", None).take()
        with tf.control_dependencies(tf.nest.flatten(permit)):
            return tf.identity(value)

    def let(self, group, steps):
        """Lets so many more steps of a group go on."""
        self._open_for[group] += steps
        for _ in range(steps):
            self._permits[group].put()

    def wait_until_next_waits(self, group):
        """Until all steps that were let are done, and the next has come."""
        wait_for(lambda: self._came[group].size() > self._open_for[group])


class HeldShard:
    """Holds the lock of the first shard of a block, so that no reply arrives."""

    def __init__(self, block):
        self._shard = block.shards[0][0]
        self._held, self._let_go = Queue("held"), Queue("let go")

    def __enter__(self):
        @tf.function(autograph=False)
        def hold():
            with tf.device(self._shard.device):
                lock = tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2(shared_name=self._shard.lock))
            with tf.control_dependencies([lock]):
                held = self._held.put()
            with tf.control_dependencies([held]):
                let_go = self._let_go.take()
            with tf.control_dependencies(tf.nest.flatten(let_go)), tf.device(self._shard.device):
                tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

        self._thread = threading.Thread(target=called_beside, args=(hold,), daemon=True)
        self._thread.start()
        self._held.take()
        return self

    def __exit__(self, *_):
        self._let_go.put()
        self._thread.join(LIMIT)
