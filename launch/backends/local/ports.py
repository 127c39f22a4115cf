"""Reserves TCP ports: from the moment a port is chosen, no other program can take it before its task listens.

`HeldPorts` binds a port without listening: first exclusively, so that it belongs to no one else, then with SO_REUSEPORT, which
lets the task bind it too. TensorFlow sets this option when TF_GRPC_REUSE_PORT is set (tensorflow pull request 38705).
"""

import dataclasses
import socket
from typing import Any

from tfdist.cluster import Cluster

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1", "0.0.0.0")

_kept: dict[int, socket.socket] = {}


class HeldPorts:
    """The reserved ports of tasks on this machine. Close it when the job has ended."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def hold(self, cluster: Cluster, names: set[str]) -> Cluster:
        """Reserves a port for each task in `names` (`job:index`); returns the cluster with the addresses.

        A task whose port is open gets its usual one (`Cluster.addressed`), or any free port where that is taken.

        Raises:
            ClusterError: when a port in the description is taken.
        """
        described = {task.name: task.port for task in cluster.tasks}
        tasks = []
        for task in cluster.addressed().tasks:
            if task.name in names:
                assert task.port is not None
                port = self._bind(task.port)
                if port is None and described[task.name] is not None:
                    raise cluster.source.error(
                        f"port {task.port} of {task.name} is in use on this machine; free it or describe another"
                    )
                if port is None:
                    port = self._bind(0)
                task = dataclasses.replace(task, port=port)
            tasks.append(task)
        return dataclasses.replace(cluster, tasks=tuple(tasks))

    def keep_for_next(self) -> None:
        """Keeps the ports reserved until the next `HeldPorts` of this process holds them."""
        _kept.update({int(held.getsockname()[1]): held for held in self._sockets})
        self._sockets.clear()

    def close(self) -> None:
        """Releases the ports."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()

    def _bind(self, port: int) -> int | None:
        if port in _kept:
            self._sockets.append(_kept.pop(port))
            return port
        held = socket.socket()
        try:
            _bind_exclusively(held, port)
        except OSError:
            held.close()
            return None
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._sockets.append(held)
        return int(held.getsockname()[1])


def _bind_exclusively(held: socket.socket, port: int) -> None:
    """Binds a port on all interfaces, like TensorFlow's server.

    Connections of a server that has ended keep its port for a minute (TIME_WAIT). As for a new server, they do not count.
    Two launchers may then bind the port at the same moment, but only one of them can listen.
    """
    try:
        held.bind(("", port))
    except OSError:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", port))
        held.listen()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # Else another launcher could do the same.
        held.shutdown(socket.SHUT_RD)  # Listens no more, but stays bound.


def is_free(port: int) -> bool:
    """Returns whether nobody has bound a port of this machine, so that `HeldPorts` can hold it."""
    with socket.socket() as probe:
        try:
            _bind_exclusively(probe, port)
        except OSError:
            return False
    return True


def names_this_machine(host: str | None) -> bool:
    """Returns whether `host` is None, a loopback name or the machine's name. Asks no name server, unlike `is_local`."""
    return host is None or host.lower() in (*LOCAL_HOSTS, socket.gethostname().lower())


def is_local(host: str | None) -> bool:
    """Returns whether `host` is this machine: None, a loopback name, the machine's name or one of its addresses."""
    if names_this_machine(host):
        return True
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in addresses)


def _can_bind(family: int, address: Any) -> bool:
    """Returns whether this process can bind `address`, which must be one of this machine."""
    with socket.socket(family) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True
