"""Serves the other tasks of a cluster in the process of its chief, for programs that start and lose no task.

A task of its own costs seconds of processor time, a server in this process milliseconds. Calls, functions and tensors travel by
gRPC here, too.
"""

import json
import os
import sys
from pathlib import Path

import tensorflow as tf

sys.path.append(str(Path(__file__).resolve().parents[1]))
from by_hand import configs

_servers = []  # They end with their objects.


def serve(options=None, **jobs):
    """Starts servers for so many tasks of each job, and makes this process their chief. Call it before `tfdist.strategy`.

    Args:
        options: those of tfdist, as in TF_CONFIG.
        jobs: the number of tasks of `worker` and `ps`.
    """
    environment = configs(options, chief=1, **jobs)["chief", 0]
    cluster = tf.train.ClusterSpec(json.loads(environment["TF_CONFIG"])["cluster"])
    # Two for each worker, because all share the threads: else all of them may wait for each other.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=2 * sum(jobs.values()) + 2)
    for job, count in jobs.items():
        for index in range(count):
            _servers.append(tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc", config=config))
    os.environ.update(environment)
