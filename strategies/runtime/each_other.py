"""Lets tasks that all train wait for each other, without TensorFlow.

A task that is started again may find the others in the training that has lost it: their TensorFlow servers still listen. It
could not join them, and TensorFlow would wait forever. So a task that waits answers with a greeting, which a TensorFlow server
does not, and each notes who has greeted it. What listens and has never greeted this task belongs to an earlier training.

The address of a task that waits accepts no other connection. A task of the earlier training that reaches it, as it does where
the new address has the old name, learns at once that the one it has lost is gone.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence

from tfdist.cluster import Task
from tfdist.errors import StartTimeoutError
from tfdist.strategies.runtime import reachability
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.peers import Missing, listener, not_connected, wait_for_tasks
from tfdist.strategies.runtime.task_address import connect

GREETING = b"tfdist waits as "
"""What either side sends, and then its name and a line feed."""

CONNECT_SECONDS = 1.0

SERVER_POLL_SECONDS = 0.01
"""It starts within milliseconds after the others have been found."""

MOST_BYTES = 256
"""Of a greeting."""


def wait_for_each_other(me: Task, tasks: Sequence[Task], timeout: float, log: Callable[[str], None]) -> None:
    """Waits until every task of `tasks` has called this too.

    Accepts connections at the address of `me` meanwhile; those of this machine only, if all tasks are on it.

    Args:
        me: the task of this process.
        tasks: all tasks, with addresses; `me` may be one of them.
        timeout: seconds until it gives up.
        log: called every 10 s with a sentence that names the missing tasks.

    Raises:
        StartTimeoutError: if a task has not called it within `timeout` seconds, or if `me` cannot listen at its own address.
    """
    try:
        door = _Door(me)
    except OSError as cause:
        raise StartTimeoutError(
            f"{me.name} cannot listen at {me.address}: {cause.strerror}; free the port, or describe another"
        ) from cause
    if me.port is not None and reachability.are_here(tasks):
        reachability.accept_only_this_machine({me.port})
    with door:
        wait_for_tasks([task for task in tasks if task is not me], timeout, log, door.why_missing)


def wait_for_server(me: Task, task: Task, deadline: Deadline) -> None:
    """Waits until the TensorFlow server of `task` listens, or until the deadline.

    Call it after `wait_for_each_other` and before TensorFlow connects to that task: gRPC tries again only after a second.
    """
    while greet(me.name, task, deadline.within(CONNECT_SECONDS)) is not Missing.EARLIER and not deadline.expired():
        time.sleep(SERVER_POLL_SECONDS)


class _Door:
    """The address of a task that waits. Use it as a context manager, which closes the address.

    Raises:
        OSError: if the task cannot listen there.
    """

    def __init__(self, me: Task) -> None:
        self._name = me.name
        self._socket = listener(me.port)
        self._greeted: set[str] = set()
        self._is_closed = False

    def __enter__(self) -> "_Door":
        threading.Thread(target=self._answer_all, name="tfdist-each-other", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # Wakes `accept`.
        self._socket.close()

    def why_missing(self, task: Task, deadline: Deadline) -> Missing | None:
        """Greets a task; returns None if it waits, or has waited and went on since it greeted this one."""
        found = greet(self._name, task, deadline)
        return None if found is None or task.name in self._greeted else found

    def _answer_all(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # It is closed, or this process has too many open files for now.
                time.sleep(SERVER_POLL_SECONDS)
                continue
            threading.Thread(target=self._answer, args=(connection,), name="tfdist-each-other", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            name = _greeting(connection, Deadline.after(CONNECT_SECONDS))
            if name is not None:
                self._greeted.add(name)  # First: who has the answer may go on, and be gone.
                connection.sendall(_line(self._name))


def greet(name: str, task: Task, deadline: Deadline) -> Missing | None:
    """Greets a task.

    Returns:
        None if the task waits, and knows now that `name` does; else what was found.
    """
    try:
        connection = connect(task, deadline.within(CONNECT_SECONDS))
    except OSError as error:
        return not_connected(error)
    try:
        with connection:
            connection.sendall(_line(name))
            answer = _greeting(connection, deadline)
    except TimeoutError:
        return Missing.MUTE
    except OSError:
        return Missing.EARLIER  # A server that ends the connection, as gRPC's does after such a line.
    if answer is None:
        return Missing.EARLIER
    return None if answer == task.name else Missing.OTHER_TASK


def _line(name: str) -> bytes:
    return GREETING + name.encode() + b"\n"


def _greeting(connection: socket.socket, deadline: Deadline) -> str | None:
    """Returns the name in the greeting that arrives; None if something else arrives, or nothing more.

    Raises:
        TimeoutError: at the deadline.
    """
    received = b""
    while not received.endswith(b"\n"):
        connection.settimeout(max(0.01, deadline.remaining()))
        part = connection.recv(MOST_BYTES - len(received))
        received += part
        if not part or not received.startswith(GREETING[: len(received)]) or len(received) == MOST_BYTES:
            return None
    return received[len(GREETING) : -1].decode(errors="replace")
