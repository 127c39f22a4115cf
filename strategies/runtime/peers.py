"""Waits for the tasks of a cluster to start, without TensorFlow.

TensorFlow itself waits without a limit and does not name the missing tasks (for example tensorflow#46931).
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from tfdist.cluster import Task

POLL_SECONDS = 0.1
LOG_SECONDS = 10.0


class StartTimeoutError(TimeoutError):
    """Tasks did not start in time. The message names them."""


def is_listening(task: Task, timeout: float = 1.0) -> bool:
    """Returns whether the address of `task` accepts TCP connections, after at most `timeout` seconds."""
    assert task.host is not None
    try:
        socket.create_connection((task.host, task.port), timeout).close()
    except OSError:
        return False
    return True


def waiting_for(tasks: Iterable[Task]) -> str:
    """Returns `worker:1 (host:port), ps:0 (host:port)`: at most ten tasks, then the number of further ones."""
    named = [f"{task.name} ({task.address})" for task in tasks]
    more = f" and {len(named) - 10} more" if len(named) > 10 else ""
    return ", ".join(named[:10]) + more


def wait_for_tasks(tasks: Sequence[Task], timeout: float, log: Callable[[str], None]) -> None:
    """Waits until every task accepts connections.

    Args:
        tasks: tasks with addresses.
        timeout: seconds until it gives up.
        log: called every 10 s with a sentence that names the missing tasks.

    Raises:
        StartTimeoutError: if a task does not accept connections within `timeout` seconds.
    """
    start = time.monotonic()
    logged = start
    missing = list(tasks)
    while True:
        missing = [task for task in missing if not is_listening(task)]
        if not missing:
            return
        now = time.monotonic()
        if now - start >= timeout:
            raise StartTimeoutError(
                f"gave up after {timeout:.0f} s: no answer from {waiting_for(missing)}; "
                "start these tasks, or check that their addresses can be reached from here"
            )
        if now - logged >= LOG_SECONDS:
            logged = now
            log(f"waiting {now - start:.0f} s for {waiting_for(missing)}")
        time.sleep(POLL_SECONDS)


def wait_for_each_other(me: Task, tasks: Sequence[Task], timeout: float, log: Callable[[str], None]) -> None:
    """Waits until every task of `tasks` has called this too, or listens already for another reason.

    Accepts connections at the address of `me` meanwhile.

    Raises:
        StartTimeoutError: as `wait_for_tasks`, or if `me` cannot listen at its own address.
    """
    with _listening(me):
        wait_for_tasks([task for task in tasks if task is not me], timeout, log)


@contextlib.contextmanager
def _listening(me: Task) -> Iterator[None]:
    both = socket.has_dualstack_ipv6()
    listener = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    with listener:
        if both:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if os.environ.get("TF_GRPC_REUSE_PORT") == "1":  # The launcher holds the port. Without it TensorFlow could not bind it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listener.bind(("", me.port))
            listener.listen(socket.SOMAXCONN)  # The kernel accepts; no data travels on these connections.
        except OSError as cause:
            raise StartTimeoutError(
                f"{me.name} cannot listen at {me.address}: {cause.strerror}; free the port, or describe another"
            ) from cause
        yield
