"""The sockets of this process, on Linux: TensorFlow gives no access to those of its gRPC, and sets no limits of its own."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Collection, Iterator

from tfdist.cluster import Cluster

_DESCRIPTORS = "/proc/self/fd"

POLL_SECONDS = 5.0
"""How often new connections are looked for. gRPC gives up one whose peer is silent after 20 s."""

REPEAT_MILLISECONDS = 2000
"""How long the kernel waits at most before it sends again what is not acknowledged: how soon it notices that a link is back."""

_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)

TCP_RTO_MAX_MS = 44
"""Of <linux/tcp.h> since Linux 6.15; the module `socket` does not have it."""


def own_sockets() -> Iterator[socket.socket]:
    """Yields a duplicate of each socket of this process, which is closed afterwards. Elsewhere than on Linux yields nothing."""
    try:
        descriptors = [int(name) for name in os.listdir(_DESCRIPTORS)]
    except OSError:
        return
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            if os.readlink(f"{_DESCRIPTORS}/{descriptor}").startswith("socket:"):
                is_blocking = os.get_blocking(descriptor)
                with socket.socket(fileno=os.dup(descriptor)) as found:
                    os.set_blocking(descriptor, is_blocking)  # A program's `socket.setdefaulttimeout` has changed it for both.
                    yield found


def ports_of(cluster: Cluster) -> frozenset[int]:
    """Returns the ports at which the training tasks of a cluster serve."""
    return frozenset(task.port for task in cluster.training_tasks if task.port is not None)


def keep_connections(ports: Collection[int], seconds: float) -> None:
    """Lets connections between tasks outlive a cut of their link, from now on, in a thread.

    gRPC's servers end a connection if something that they have sent is not acknowledged for 20 s, and with it the calls of the
    peer, although the link is back. And the kernel doubles the time after which it sends again: after a cut of 30 s the
    connection stays silent for 20 s more. Since Linux 6.15 that time has a limit, here `REPEAT_MILLISECONDS`.

    Args:
        ports: where the tasks serve, this one among them.
        seconds: how long a connection may be silent instead.
    """
    if _TCP_USER_TIMEOUT is None:
        return

    def keep() -> None:
        while True:
            for connection in own_sockets():
                with contextlib.suppress(OSError, IndexError):  # It has no peer, or is no TCP connection.
                    if {connection.getsockname()[1], connection.getpeername()[1]}.isdisjoint(ports):
                        continue
                    connection.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, int(seconds * 1000))
                    connection.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, REPEAT_MILLISECONDS)
            time.sleep(POLL_SECONDS)

    threading.Thread(target=keep, name="tfdist-connections", daemon=True).start()
