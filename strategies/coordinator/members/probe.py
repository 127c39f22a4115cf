"""Asks tasks whether they answer, without TensorFlow, whose calls to a worker that is stopped or cut off never return."""

import threading
from collections.abc import Iterable

from tfdist.cluster import Task
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.server_identity import SETTINGS, hello
from tfdist.strategies.runtime.task_address import connect

PROBE_SECONDS = 5.0
"""How long a worker has to answer when it is asked."""

UNREAD_SECONDS = 0.2
"""How long threads get to read answers that have arrived in time."""

_HEADER_BYTES = 9
"""The length of the header of an HTTP/2 frame, whose fourth byte is the type."""


def answering(tasks: Iterable[Task], deadline: Deadline, enough: int | None = None) -> set[Task]:
    """Returns the tasks that answer before the deadline. Asks all at the same time.

    The kernel accepts connections for a process that is stopped, so a task has to send something. Its gRPC server does, also
    while all its cores compute a step.

    Args:
        tasks: tasks with addresses.
        deadline: when to stop waiting for answers.
        enough: after so many answers it returns; None to wait for all.
    """
    tasks, answered, changed, asked = list(tasks), set(), threading.Condition(), 0

    def ask(task: Task) -> None:
        nonlocal asked
        has_answered = _answers(task, deadline)
        with changed:
            asked += 1
            if has_answered:
                answered.add(task)
            changed.notify()

    def is_over() -> bool:
        return asked == len(tasks) or (enough is not None and len(answered) >= enough)

    for task in tasks:
        try:
            threading.Thread(target=ask, args=(task,), name="tfdist-probe", daemon=True).start()
        except RuntimeError:  # No threads are left: one after the other.
            ask(task)
    with changed:
        # Name resolution has limits of its own. If a callback holds Python's lock until then, the answers are here, unread.
        if not changed.wait_for(is_over, deadline.remaining() + 1.0):
            changed.wait_for(is_over, UNREAD_SECONDS)
        return set(answered)


def _answers(task: Task, deadline: Deadline) -> bool:
    answer = b""
    try:
        with connect(task, deadline) as connection:
            connection.sendall(hello())
            while len(answer) < _HEADER_BYTES:
                connection.settimeout(max(0.01, deadline.remaining()))
                if not (received := connection.recv(_HEADER_BYTES - len(answer))):
                    return False
                answer += received
    except OSError:
        return False
    return answer[3] == SETTINGS
