"""How a serving task learns that the chief's program has ended.

Every server opens a queue of this name in its own TensorFlow runtime and takes one number from it. The chief puts the number
there when its program ends. It travels by the cluster's own gRPC, so it needs no port or file beside those of TF_CONFIG.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.cluster import Task
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.peers import in_parallel, is_listening
from tfdist.strategies.runtime.task_address import device_of

QUEUE = "tfdist_end"
FINISHED, FAILED = 0, 1
NOTIFY_TIMEOUT_SECONDS = 5.0
"""For all tasks together: a task that is stopped or cut off does not answer."""


def _queue() -> Any:
    return tf.raw_ops.FIFOQueueV2(component_types=[tf.int32], shared_name=QUEUE)


def receive(server: "tf.distribute.Server", task: Task) -> int:
    """Blocks the serving process until the chief's program ends; returns FINISHED or FAILED."""
    graph = tf.Graph()
    with graph.as_default(), tf.device(device_of(task)):
        end = tf.raw_ops.QueueDequeueV2(handle=_queue(), component_types=[tf.int32])
    # Without the filter the session first calls every task of the cluster. A connection to a task that is not up yet fails
    # until gRPC's back-off has run out, also for the training that follows.
    config = tf.compat.v1.ConfigProto(device_filters=[device_of(task).rpartition("/device")[0]])
    with tf.compat.v1.Session(server.target, graph=graph, config=config) as session:
        return int(session.run(end)[0])


def notify(tasks: Iterable[Task], status: int) -> None:
    """Sends `status` to every task that still listens, to all at the same time; gives up after 5 s."""

    def notify_one(task: Task) -> None:
        try:
            if is_listening(task):
                with tf.device(device_of(task)):
                    tf.raw_ops.QueueEnqueueV2(handle=_queue(), components=[tf.constant(status)])
        except tf.errors.OpError:
            pass  # The task has ended meanwhile.

    in_parallel(notify_one, tasks, Deadline.after(NOTIFY_TIMEOUT_SECONDS))
