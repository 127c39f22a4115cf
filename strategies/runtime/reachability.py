"""Keeps other machines away from the TensorFlow servers of a job whose addresses are all on this machine.

TensorFlow's servers listen on every network interface, whatever their address says, and ask nobody who they are: who reaches
such a port can run TensorFlow operations there, and read and write files with them (SECURITY.md of TensorFlow). On Linux a
listening socket takes a filter, without privileges; this one drops what does not arrive over the loopback interface, before the
kernel answers it. To other machines the port looks as if a firewall dropped their packets.
"""

import ctypes
import ipaddress
import logging
import os
import socket
import struct
import sys
from collections.abc import Collection, Iterable

from tfdist.cluster import Cluster, Task
from tfdist.strategies.runtime.own_sockets import own_sockets

PRIVATE_NETWORK = "TFDIST_PRIVATE_NETWORK"
"""The environment variable that says, with "1": only trusted machines reach this one, do not warn."""

SO_ATTACH_FILTER = 26
"""Of <asm-generic/socket.h>; the module `socket` does not have it."""

_LOOPBACK_INDEX = 1  # LOOPBACK_IFINDEX of <linux/net_namespace.h>: `lo` is the first interface of every network namespace.
_INTERFACE_INDEX = 0xFFFFF000 + 8  # SKF_AD_OFF + SKF_AD_IFINDEX of <linux/filter.h>.
_PROGRAM = (  # Classic BPF: operation, where to jump if true, if false, operand.
    (0x20, 0, 0, _INTERFACE_INDEX),  # BPF_LD | BPF_W | BPF_ABS
    (0x15, 0, 1, _LOOPBACK_INDEX),  # BPF_JMP | BPF_JEQ | BPF_K
    (0x06, 0, 0, 0xFFFFFFFF),  # BPF_RET: keep the whole packet.
    (0x06, 0, 0, 0),  # BPF_RET: drop it.
)

_log = logging.getLogger("tfdist")


def limit(cluster: Cluster, warns: bool) -> None:
    """Closes the ports of this process that belong to `cluster` to other machines, if all of its tasks are on this one.

    Otherwise, or where it is not possible, other machines reach the ports.

    Args:
        cluster: the cluster, with addresses.
        warns: whether to log a warning if other machines reach the ports. One task of a job does.
    """
    ports = {task.port for task in cluster.training_tasks if task.port is not None}
    if not ports:
        return
    if are_here(cluster.training_tasks):
        if not accept_only_this_machine(ports):
            _log.debug("the ports of this job could not be closed to other machines")
        return
    if warns and os.environ.get(PRIVATE_NETWORK) != "1":
        addresses = [task.address for task in cluster.training_tasks]
        others = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
        _log.warning(
            "the TensorFlow servers of this job (%s%s) take every connection, without authentication: who reaches them can run "
            "code there; keep them in a private network (docs/security.md), and say so with %s=1",
            addresses[0],
            others,
            PRIVATE_NETWORK,
        )


def are_here(tasks: Iterable[Task]) -> bool:
    """Returns whether all addresses are loopback ones."""
    return all(_is_loopback(task.host) for task in tasks)


def accept_only_this_machine(ports: Collection[int]) -> bool:
    """Makes the sockets of this process that listen at `ports` drop what comes from other machines.

    Returns:
        Whether the kernel took the filter for all of them. False on systems other than Linux, and in sandboxes without filters.
    """
    if sys.platform != "linux":
        return False
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _PROGRAM))
    argument = struct.pack("HP", len(_PROGRAM), ctypes.addressof(program))  # struct sock_fprog
    try:
        for sock in own_sockets():
            is_internet = sock.family in (socket.AF_INET, socket.AF_INET6)
            if is_internet and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and sock.getsockname()[1] in ports:
                sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, argument)
    except OSError:
        return False
    return True


def _is_loopback(host: str | None) -> bool:
    if host is None or host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
