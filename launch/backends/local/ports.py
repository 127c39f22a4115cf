"""TCP ports that nobody can take between the moment they are chosen and the moment a task listens on them.

A port is bound here without listening, first exclusively, so that it is nobody else's, then opened with SO_REUSEPORT to the
tasks, which bind it too: TensorFlow does so when TF_GRPC_REUSE_PORT is set (tensorflow pull request 38705).
"""

import dataclasses
import socket
from typing import Any

from tfdist.cluster import Cluster

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1", "0.0.0.0")

_offered: dict[int, socket.socket] = {}


class HeldPorts:
    """The ports of the tasks that run on this machine; close it when the job has ended."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def hold(self, cluster: Cluster, names: set[str]) -> Cluster:
        """Holds a port for each of the tasks `names` (`job:index`) and returns the cluster with these addresses.

        A task whose port the description leaves open gets its usual one (`Cluster.addressed`) or, where that is taken, any
        free one.

        Raises:
            ClusterError: when a port that the description gives is taken.
        """
        given = {task.name: task.port for task in cluster.tasks}
        tasks = []
        for task in cluster.addressed().tasks:
            if task.name in names:
                assert task.port is not None
                port = self._bind(task.port)
                if port is None and given[task.name] is not None:
                    raise cluster.source.error(
                        f"port {task.port} of {task.name} is in use on this machine; free it or describe another"
                    )
                if port is None:
                    port = self._bind(0)
                task = dataclasses.replace(task, port=port)
            tasks.append(task)
        return dataclasses.replace(cluster, tasks=tuple(tasks))

    def offer(self) -> None:
        """Lets the ports be taken by the next in this process who holds them; nobody else gets them in between."""
        _offered.update({int(held.getsockname()[1]): held for held in self._sockets})
        self._sockets.clear()

    def close(self) -> None:
        """Lets the ports go."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()

    def _bind(self, port: int) -> int | None:
        if port in _offered:
            self._sockets.append(_offered.pop(port))
            return port
        held = socket.socket()
        try:
            held.bind(("", port))  # All interfaces, as TensorFlow's server does.
        except OSError:
            held.close()
            return None
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._sockets.append(held)
        return int(held.getsockname()[1])


def is_local(host: str | None) -> bool:
    """Whether `host` names this machine: open, a loopback name, this machine's own name or one of its addresses."""
    if host is None or host.lower() in (*LOCAL_HOSTS, socket.gethostname().lower()):
        return True
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in addresses)


def _can_bind(family: int, address: Any) -> bool:
    """Whether `address` is one of this machine's: only those can be bound."""
    with socket.socket(family) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True
