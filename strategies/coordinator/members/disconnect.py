"""Ends this process' connections to a task that does not answer, so that calls to it fail now.

TensorFlow's calls have no limit. As long as one has no answer, the process cannot make new kernels either: a callback that
makes a dataset would wait for a worker that is stopped. With its connection closed, a call ends as if the worker had been
killed.
"""

import contextlib
import ipaddress
import socket

from tfdist.cluster import Task
from tfdist.strategies.runtime.own_sockets import own_sockets


def disconnect(task: Task) -> int:
    """Shuts down the connections of this process to a task, on Linux; elsewhere does nothing. Returns how many there were."""
    assert task.host is not None
    try:
        found = socket.getaddrinfo(task.host, task.port, type=socket.SOCK_STREAM)
    except OSError:
        return 0
    addresses = {_plain(str(entry[4][0])) for entry in found}
    ended = 0
    for connection in own_sockets():
        with contextlib.suppress(OSError, ValueError):
            host, port = connection.getpeername()[:2]
            if port == task.port and _plain(host) in addresses:
                connection.shutdown(socket.SHUT_RDWR)
                ended += 1
    return ended


def _plain(host: str) -> str:
    """Returns an IP address without a zone and, if it is an IPv4 address in IPv6, as IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)
