"""The sockets of this process, on Linux: TensorFlow gives no access to those of its gRPC, and sets no limits of its own."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

_DESCRIPTORS = "/proc/self/fd"

POLL_SECONDS = 5.0
"""How often new connections are looked for. gRPC gives up one whose peer is silent after 20 s."""

_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)


def own_sockets() -> Iterator[socket.socket]:
    """Yields a duplicate of each socket of this process, which is closed afterwards. Elsewhere than on Linux yields nothing."""
    try:
        descriptors = [int(name) for name in os.listdir(_DESCRIPTORS)]
    except OSError:
        return
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            if os.readlink(f"{_DESCRIPTORS}/{descriptor}").startswith("socket:"):
                with socket.socket(fileno=os.dup(descriptor)) as found:
                    yield found


def keep_connections(port: int | None, seconds: float) -> None:
    """Lets connections that others make to `port` of this process outlive a cut of their link, from now on, in a thread.

    gRPC's servers end a connection if something that they have sent is not acknowledged for 20 s, and with it the calls of the
    peer, although the link is back.

    Args:
        port: where this process serves.
        seconds: how long a connection may be silent instead.
    """
    if _TCP_USER_TIMEOUT is None or port is None:
        return

    def keep() -> None:
        while True:
            for connection in own_sockets():
                with contextlib.suppress(OSError, IndexError):  # It has no peer, or is no TCP connection.
                    if connection.getsockname()[1] == port and connection.getpeername():
                        connection.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, int(seconds * 1000))
            time.sleep(POLL_SECONDS)

    threading.Thread(target=keep, name="tfdist-connections", daemon=True).start()
