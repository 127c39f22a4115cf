"""Whether a task answers, and the end of this process' connections to one that does not.

TensorFlow tells every worker of each new function, waits for the answer without a limit and holds Python's lock meanwhile.
A worker that was killed is an error that it handles; one that is stopped (SIGSTOP, a frozen machine) would stop the chief.
Without connections it is for TensorFlow like one that was killed.
"""

import contextlib
import os
import socket
import stat

from tfdist.cluster import Task

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How clients of HTTP/2, and so of gRPC, begin: a preface and their settings (RFC 9113, 3.4). A server says its own at once."""

DESCRIPTORS = "/dev/fd"
"""Lists what this process has open, on Linux and macOS."""


def answers(task: Task, seconds: float = 10.0) -> bool:
    """Whether the gRPC server of `task` says something within so many seconds, however busy it is with its steps."""
    try:
        with socket.create_connection((task.host, task.port), seconds) as connection:
            connection.sendall(HELLO)
            return connection.recv(1) != b""
    except OSError:
        return False


def cut(task: Task) -> int:
    """Ends the TCP connections that this process has opened to `task`; returns how many. A new one may be made at once."""
    addresses, ended = _addresses(task), 0
    for name in os.listdir(DESCRIPTORS) if os.path.isdir(DESCRIPTORS) else []:
        with contextlib.suppress(OSError):  # The listing itself is over, and others may be closed meanwhile.
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as connection:
                    if connection.getpeername()[:2] in addresses:
                        connection.shutdown(socket.SHUT_RDWR)  # Whoever reads from it, TensorFlow's gRPC, sees its end.
                        ended += 1
    return ended


def _addresses(task: Task) -> set[tuple[str, int]]:
    """What `getpeername` gives for the task: as IPv4, as IPv6, and as IPv4 in IPv6."""
    assert task.host is not None and task.port is not None
    found = [address for *_, address in socket.getaddrinfo(task.host, task.port, type=socket.SOCK_STREAM)]
    return {(f"{prefix}{address[0]}", task.port) for address in found for prefix in ("", "::ffff:")}
