"""Asks tasks whether they answer, without TensorFlow, whose calls to a worker that is stopped or cut off never return."""

import socket
import threading
from collections.abc import Iterable

from tfdist.cluster import Task
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.server_identity import SETTINGS, hello

PROBE_SECONDS = 5.0
"""How long a worker has to answer when it is asked."""

_HEADER_BYTES = 9
"""The length of the header of an HTTP/2 frame, whose fourth byte is the type."""


def answering(tasks: Iterable[Task], deadline: Deadline) -> set[Task]:
    """Returns the tasks that answer before the deadline. Asks all at the same time.

    The kernel accepts connections for a process that is stopped, so a task has to send something. Its gRPC server does, also
    while all its cores compute a step.
    """
    tasks, found = list(tasks), set()

    def ask(task: Task) -> None:
        if _answers(task, deadline):
            found.add(task)

    threads = [threading.Thread(target=ask, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline.remaining() + 1.0)  # Name resolution has limits of its own.
    return set(found)


def _answers(task: Task, deadline: Deadline) -> bool:
    assert task.host is not None and task.port is not None
    answer = b""
    try:
        with socket.create_connection((task.host, task.port), max(0.01, deadline.remaining())) as connection:
            connection.sendall(hello())
            while len(answer) < _HEADER_BYTES:
                connection.settimeout(max(0.01, deadline.remaining()))
                if not (received := connection.recv(_HEADER_BYTES - len(answer))):
                    return False
                answer += received
    except OSError:
        return False
    return answer[3] == SETTINGS
