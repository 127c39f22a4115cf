"""A ps or worker task: a TensorFlow server that runs until the chief has finished."""

import atexit
import logging
import os
import sys
import threading
import time
from typing import NoReturn

from tfdist.cluster import Cluster, Task
from tfdist.strategies.runtime.memory import keep_freed_memory
from tfdist.strategies.runtime.peers import is_listening, waiting_for

CHIEF_POLL_SECONDS = 5.0
CHIEF_GONE_SECONDS = 30.0

ANSWER_SECONDS = 0.3
"""How long a server lives on after it was told to end, so that its answer still reaches the chief."""

EXIT_CHIEF_FAILED = 75
"""Exit code of a server that ends because of the chief, not of itself: EX_TEMPFAIL of <sysexits.h>."""

_log = logging.getLogger("tfdist")


def serve(cluster: Cluster, task: Task, start_timeout: float) -> NoReturn:
    """Serves TensorFlow operations at the address of `task`, then ends the process.

    Exits with 0 when the chief has finished; with 75 when its program failed, when it has been gone for 30 s without a word,
    or when it did not appear within `start_timeout` seconds.

    Args:
        cluster: the cluster as this task sees it, with addresses.
        task: this task.
        start_timeout: seconds to wait for the chief to come up.
    """
    import tensorflow as tf

    from tfdist.strategies import quiet_tensorflow
    from tfdist.strategies.runtime import shutdown

    quiet_tensorflow()
    keep_freed_memory()

    # A task whose threads all wait for each other's values deadlocks; one per worker and one more is TensorFlow's own
    # advice (tensorflow.org/tutorials/distribute/parameter_server_training, "In-process cluster"). Groups that share a
    # task are as many workers.
    workers = max(len(cluster.job("worker")), len(cluster.worker_groups))
    threads = max(os.cpu_count() or 1, workers + 1)
    # A worker with several slots computes several replicas, on as many logical CPU devices where it has no GPUs for them.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads, device_count={"CPU": task.slots})
    try:
        server = tf.distribute.Server(
            tf.train.ClusterSpec(cluster.cluster_spec()),
            job_name=task.job,
            task_index=task.index,
            protocol=cluster.protocol,
            config=config,
        )
    except tf.errors.OpError as cause:
        raise SystemExit(f"tfdist: {task.name} cannot serve at {task.address}: {cause.message}") from cause
    _log.debug("%s serves at %s", task.name, task.address)
    ended: list[int] = []
    receiver = threading.Thread(target=lambda: ended.append(shutdown.receive(server, task)), daemon=True)
    receiver.start()
    fault = _watch(cluster, task, receiver, start_timeout)
    time.sleep(ANSWER_SECONDS)
    if fault is None and ended and ended[0] == shutdown.FINISHED:
        _leave(0)
    _log.error("%s ends: %s", task.name, fault or "the chief's program failed")
    _leave(EXIT_CHIEF_FAILED)


def _leave(status: int) -> NoReturn:
    """Ends the program: its `finally` blocks and exit functions run, but TensorFlow is not taken apart, which may hang."""

    def leave() -> None:
        atexit.unregister(leave)
        atexit._run_exitfuncs()  # Those registered before this one.
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                pass  # Nobody reads any more; failing here would take TensorFlow apart after all.
        os._exit(status)

    atexit.register(leave)
    sys.exit(status)


def _watch(cluster: Cluster, task: Task, receiver: threading.Thread, start_timeout: float) -> str | None:
    """Returns None when the receiver has its answer, or a sentence that says why waiting on is no use."""
    # Without a chief in the cluster, the chief is beside worker 0 and goes with it; worker 0 itself is its child process.
    watched = [peer for peer in cluster.job("chief") or cluster.job("worker")[:1] if peer.name != task.name]
    begin = time.monotonic()
    last_seen: float | None = None
    while receiver.is_alive():
        receiver.join(CHIEF_POLL_SECONDS)
        if not watched or not receiver.is_alive():
            continue
        now = time.monotonic()
        if is_listening(watched[0]):
            last_seen = now
        elif last_seen is None and now - begin > start_timeout:
            return f"no answer from {waiting_for(watched)} within {start_timeout:.0f} s"
        elif last_seen is not None and now - last_seen > CHIEF_GONE_SECONDS:
            return f"{waiting_for(watched)} has been gone for {CHIEF_GONE_SECONDS:.0f} s without a word"
    return None
