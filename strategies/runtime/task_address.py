"""Connects to a task, whatever its name stands for. Without TensorFlow.

A name may have several addresses: of two networks, of IPv4 and IPv6. From here some may be out of reach, and a packet to these
may vanish. `socket.create_connection` waits for them one after the other, each for the whole time, and reports what it found at
the last one: a task that answers at its second address would count as cut off, and a dead one as alive for as long.

A name server may give no answer for a while, and tasks go on without it. Then a task is looked for where it was before.
"""

import contextlib
import errno
import os
import selectors
import socket
import threading
from typing import Any

from tfdist.cluster import Task
from tfdist.strategies.runtime.deadline import Deadline

STAGGER_SECONDS = 0.1
"""How long an address may take before the next one is tried as well (RFC 8305, section 5: at least 100 ms)."""

LOOK_UP_SECONDS = 0.5
"""How long the name server may take for a name that it has known before."""

LEAST_SECONDS = 0.01
"""How long connecting may take at least, also after the deadline: on this machine that is enough."""


def device_of(task: Task) -> str:
    """Returns the CPU of a task, as TensorFlow names it."""
    return f"/job:{task.job}/replica:0/task:{task.index}/device:CPU:0"


def connect(task: Task, deadline: Deadline) -> socket.socket:
    """Returns a connection to the address of a task: to the first one that accepts, if its name has several.

    Args:
        task: a task with an address.
        deadline: when to give up, without the time that looking up the name takes.

    Raises:
        ConnectionRefusedError: if an address refuses, and no other one accepts.
        OSError: if none accepts before the deadline, or the name has no address.
    """
    assert task.host is not None and task.port is not None
    left = list(_addresses(task.host, task.port))
    deadline = deadline.at_least(LEAST_SECONDS)
    errors: list[OSError] = []
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as selector:
        while left or selector.get_map():
            if left and (error := _begin(*left.pop(0), opened, selector)) is not None:
                errors.append(error)
                continue
            limit = deadline.within(STAGGER_SECONDS) if left else deadline
            for key, _ in selector.select(limit.remaining()):
                connection: socket.socket = key.fileobj  # type: ignore[assignment]
                selector.unregister(connection)
                if not (number := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
                    accepted = connection.dup()  # The others are closed, and this one too.
                    accepted.settimeout(None)
                    return accepted
                errors.append(OSError(number, os.strerror(number)))
            if deadline.expired():
                errors.append(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
                break
    raise next((error for error in errors if isinstance(error, ConnectionRefusedError)), errors[-1])


_known: dict[tuple[str, int], list[tuple[int, Any]]] = {}
"""The addresses of names, as they were found last."""


def _addresses(host: str, port: int) -> list[tuple[int, Any]]:
    """Returns family and address for each address of a name; the last ones if the name server gives no answer.

    Raises:
        OSError: if the name has none.
    """
    before = _known.get((host, port))
    if before is None or before[0][1][0] == host:  # An address needs no name server.
        return _look_up(host, port)
    answers: list[list[tuple[int, Any]]] = []
    errors: list[OSError] = []

    def look_up() -> None:
        try:
            answers.append(_look_up(host, port))
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=look_up, name="tfdist-names", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # No threads are left (ulimit -u, the limit of a container).
        return before
    thread.join(LOOK_UP_SECONDS)
    if errors and errors[0].errno != socket.EAI_AGAIN:
        raise errors[0]
    return answers[0] if answers else before


def _look_up(host: str, port: int) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    _known[host, port] = [(family, address) for family, _, _, _, address in found]
    return _known[host, port]


def _begin(family: int, address: Any, opened: contextlib.ExitStack, selector: selectors.BaseSelector) -> OSError | None:
    """Begins to connect to an address; returns why that is impossible, if it is."""
    try:
        connection = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
        connection.setblocking(False)
        number = connection.connect_ex(address)
    except OSError as error:  # The address is of a family that this machine does not have.
        return error
    if number not in (0, errno.EINPROGRESS):
        return OSError(number, os.strerror(number))
    selector.register(connection, selectors.EVENT_WRITE)
    return None
