"""The program of a serving ps or worker task: a TensorFlow server that runs until the chief's program ends."""

import atexit
import logging
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

from tfdist.cluster import Cluster, Task
from tfdist.strategies.runtime.lost_timeout import CONNECTION_TIMES, lost_seconds
from tfdist.strategies.runtime.memory import keep_freed_memory
from tfdist.strategies.runtime.own_sockets import keep_connections, ports_of
from tfdist.strategies.runtime.peers import is_listening, port_error, waiting_for
from tfdist.strategies.runtime.save_signal import has_nothing_to_save
from tfdist.strategies.runtime.streams import flush_streams
from tfdist.strategies.runtime.tensorflow_logging import quiet_tensorflow

if TYPE_CHECKING:
    import tensorflow as tf

FIRST_POLL_SECONDS, CHIEF_POLL_SECONDS = 0.2, 5.0
"""How often a server looks for the chief, until it has seen it and afterwards. If it never saw a chief that was killed soon
after its start, it would wait for `start_timeout`."""

ANSWER_SECONDS = 0.3
"""How long a server runs after the chief has ended it, so that its answer still reaches the chief."""

EXIT_CHIEF_FAILED = 75
"""Exit code of a server that ends because the chief failed: EX_TEMPFAIL of <sysexits.h>."""

ENDS_WITH_CHIEF = "TFDIST_ENDS_WITH_CHIEF"
"""Variable of tasks that are started again unless they exit with 0, as by Kubernetes. `1`: they do so if the chief fails."""

_log = logging.getLogger("tfdist")


def code_without_chief() -> int:
    """Returns the exit code of a task that ends because the chief has failed."""
    return 0 if os.environ.get(ENDS_WITH_CHIEF) == "1" else EXIT_CHIEF_FAILED


def serve(cluster: Cluster, task: Task, start_timeout: float) -> NoReturn:
    """Serves TensorFlow operations at the address of `task`, then ends the process.

    The exit code is 0 if the chief has finished. It is 75 if it did not start within `start_timeout` seconds, and
    `code_without_chief` if its program failed or it has been gone without notice for `lost_timeout.lost_seconds`.

    Args:
        cluster: the cluster, with addresses.
        task: this task.
        start_timeout: seconds to wait for the chief to start.
    """
    from tfdist.strategies.runtime import proxies, reachability, shutdown

    _leave_signals_to_chief()
    quiet_tensorflow()
    proxies.leave_out(cluster)
    keep_freed_memory()

    server = _start_server(cluster, task)
    reachability.limit(cluster, warns=False)
    _log.debug("%s serves at %s", task.name, task.address)
    keep_connections(ports_of(cluster), CONNECTION_TIMES * lost_seconds())
    ended: list[int] = []
    receiver = threading.Thread(target=lambda: ended.append(shutdown.receive(server, task)), daemon=True)
    receiver.start()
    has_seen, fault = _watch(cluster, task, receiver, start_timeout)
    time.sleep(ANSWER_SECONDS)
    if fault is None and ended and ended[0] == shutdown.FINISHED:
        _leave(0)
    _log.error("%s ends: %s", task.name, fault or "the chief's program failed")
    _leave(code_without_chief() if has_seen else EXIT_CHIEF_FAILED)


def _start_server(cluster: Cluster, task: Task) -> "tf.distribute.Server":
    """Starts TensorFlow's server. Raises SystemExit if that is not possible."""
    import tensorflow as tf

    # A task deadlocks when all of its threads wait for values from each other. TensorFlow's advice is one thread per worker and
    # one more (tensorflow.org/tutorials/distribute/parameter_server_training, "In-process cluster"). Each group that shares a
    # task counts as a worker.
    workers = max(len(cluster.job("worker")), len(cluster.worker_groups))
    threads = max(os.cpu_count() or 1, workers + 1)
    # A worker with several slots computes several replicas, on that many logical CPU devices if it has no GPUs for them.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads, device_count={"CPU": task.slots})
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(cluster.cluster_spec()),
            job_name=task.job,
            task_index=task.index,
            protocol=cluster.protocol,
            config=config,
        )
    except tf.errors.OpError as cause:
        in_use = port_error(task)
        reason = cause.message if in_use is None else f"{in_use}; free the port, or describe another"
        raise SystemExit(f"tfdist: {task.name} cannot serve at {task.address}: {reason}") from cause


def _leave_signals_to_chief() -> None:
    """Ignores SIGUSR1 and SIGUSR2, on which a chief saves and goes on: Slurm sends them to all tasks."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) in (signal.SIG_DFL, has_nothing_to_save):
                signal.signal(number, signal.SIG_IGN)


def _leave(status: int) -> NoReturn:
    """Ends the program. Its `finally` blocks and exit functions run; TensorFlow is not torn down, which may hang."""

    def leave() -> None:
        atexit.unregister(leave)
        atexit._run_exitfuncs()  # Those registered before this one.
        flush_streams()
        os._exit(status)

    atexit.register(leave)
    sys.exit(status)


def _watch(cluster: Cluster, task: Task, receiver: threading.Thread, start_timeout: float) -> tuple[bool, str | None]:
    """Waits for the receiver; returns whether the chief was there, and a sentence with the reason to stop waiting, if any."""
    # Without a chief job, the chief runs beside worker 0 and ends with it; worker 0 itself is its child process.
    watched = [peer for peer in cluster.job("chief") or cluster.job("worker")[:1] if peer.name != task.name]
    begin = time.monotonic()
    last_seen: float | None = None
    limit = lost_seconds()
    while receiver.is_alive():
        receiver.join(CHIEF_POLL_SECONDS if last_seen is not None else FIRST_POLL_SECONDS)
        if not watched or not receiver.is_alive():
            continue
        now = time.monotonic()
        if is_listening(watched[0]):
            last_seen = now
        elif last_seen is None and now - begin > start_timeout:
            return False, f"no answer from {waiting_for(watched)} within {start_timeout:.0f} s"
        elif last_seen is not None and now - last_seen > limit:
            return True, f"{waiting_for(watched)} has been gone for {limit:.0f} s without notice"
    return True, None
