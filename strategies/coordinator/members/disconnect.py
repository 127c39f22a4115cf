"""Ends this process' connections to a task that does not answer, so that calls to it fail now.

TensorFlow's calls have no limit. As long as one has no answer, the process cannot make new kernels either: a callback that
makes a dataset would wait for a worker that is stopped. With its connection closed, a call ends as if the worker had been
killed.

That holds for a connection that is only being made, too: gRPC waits 20 s for it, and the call with it.
"""

import contextlib
import functools
import ipaddress
import os
import socket
import struct

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
    ended, connecting = 0, functools.cache(_connecting)
    for connection in own_sockets():
        with contextlib.suppress(OSError, ValueError, KeyError):
            try:
                host, port = connection.getpeername()[:2]
            except OSError:  # It listens, or is not connected yet.
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    continue
                host, port = connecting()[os.fstat(connection.fileno()).st_ino]
            if port == task.port and _plain(host) in addresses:
                connection.shutdown(socket.SHUT_RDWR)
                ended += 1
    return ended


_SYN_SENT = "02"
"""The state of a connection that is being made, in the files of proc(5)."""


def _connecting() -> dict[int, tuple[str, int]]:
    """Returns where the connections of this machine lead that are being made, by inode. `getpeername` does not say it."""
    found = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/self/net/{name}", encoding="ascii") as file:
            for _, _, peer, state, *_, inode in (line.split()[:10] for line in list(file)[1:]):
                if state == _SYN_SENT:
                    host, _, port = peer.partition(":")
                    words = (int(host[at : at + 8], 16) for at in range(0, len(host), 8))
                    address = b"".join(struct.pack("=I", word) for word in words)
                    found[int(inode)] = str(ipaddress.ip_address(address)), int(port, 16)
    return found


def _plain(host: str) -> str:
    """Returns an IP address without a zone and, if it is an IPv4 address in IPv6, as IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)
