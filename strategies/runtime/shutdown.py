"""How a serving task learns that the chief has finished.

Every server opens a queue of this name in its own TensorFlow runtime and takes from it; the chief puts one number into each
when its program ends. It travels over the cluster's own gRPC, so it needs no port and no file beside those of TF_CONFIG.
"""

import threading
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.cluster import Task
from tfdist.strategies.runtime.peers import is_listening

QUEUE = "tfdist_end"
FINISHED, FAILED = 0, 1
TELL_TIMEOUT_SECONDS = 5.0


def _device(task: Task) -> str:
    return f"/job:{task.job}/replica:0/task:{task.index}/device:CPU:0"


def _queue() -> Any:
    return tf.raw_ops.FIFOQueueV2(component_types=[tf.int32], shared_name=QUEUE)


def receive(server: "tf.distribute.Server", task: Task) -> int:
    """Blocks in the serving process until the chief has told its end; returns FINISHED or FAILED."""
    graph = tf.Graph()
    with graph.as_default(), tf.device(_device(task)):
        end = tf.raw_ops.QueueDequeueV2(handle=_queue(), component_types=[tf.int32])
    # Without the filter the session first calls every task of the cluster, and those that are not up yet get a connection
    # that fails until gRPC's back-off has run out, also for the training that follows.
    alone = tf.compat.v1.ConfigProto(device_filters=[_device(task).rpartition("/device")[0]])
    with tf.compat.v1.Session(server.target, graph=graph, config=alone) as session:
        return int(session.run(end)[0])


def tell(tasks: Iterable[Task], status: int) -> None:
    """Tells every task that still listens that the chief ends with `status`; gives up on a task after five seconds."""

    def tell_one(task: Task) -> None:
        try:
            if is_listening(task):
                with tf.device(_device(task)):
                    tf.raw_ops.QueueEnqueueV2(handle=_queue(), components=[tf.constant(status)])
        except tf.errors.OpError:
            pass  # The task ended in this moment, which is what was wanted.

    threads = [threading.Thread(target=tell_one, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TELL_TIMEOUT_SECONDS)
