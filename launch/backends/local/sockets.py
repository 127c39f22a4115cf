"""`connections`: the TCP connections of this machine with the kernel's counters, over netlink (man 7 sock_diag).

Usually only those to other machines: what stays on this one does not use its link. Nothing is known if the kernel is silent.
"""

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_INFO = 2  # INET_DIAG_INFO: struct tcp_info follows.
_ESTABLISHED = 1
_SECONDS = 0.5

_HEADER = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBBBI48s")  # struct inet_diag_req_v2
_MESSAGE = struct.Struct("=BBBB2s2s16s16sI2IIIIII")  # struct inet_diag_msg
_ATTRIBUTE = struct.Struct("=HH")

# Offsets of 64-bit counters in struct tcp_info (linux/tcp.h), which only grows at its end.
_ACKED, _RECEIVED, _RECEIVER_LIMITED = 120, 128, 176


@dataclass(frozen=True)
class Connection:
    """A connection.

    Attributes:
        inode: number of the socket, as in `/proc/PID/fd`.
        waiting: bytes that wait to be sent, or for which no acknowledgment has come.
        sent: bytes that have arrived at the other end.
        received: bytes that have arrived here.
        receiver_limited: microseconds for which the other end took no more.
    """

    inode: int
    waiting: int
    sent: int
    received: int
    receiver_limited: int


def connections(*, within: bool = False) -> list[Connection] | None:
    """Returns the established connections to other machines; None where the kernel does not tell. With `within` also those
    within this machine, of which each of the two ends is one."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
            netlink.settimeout(_SECONDS)
            return [each for family in (socket.AF_INET, socket.AF_INET6) for each in _of_family(netlink, family, within)]
    except (OSError, AttributeError, struct.error):
        return None


def inodes(pid: int) -> set[int]:
    """Returns the numbers of the sockets of a process."""
    numbers = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                numbers.add(int(target[8:-1]))
    except OSError:
        pass
    return numbers


def _of_family(netlink: socket.socket, family: int, within: bool) -> Iterator[Connection]:
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, 1 << _ESTABLISHED, bytes(48))
    netlink.send(_HEADER.pack(_HEADER.size + len(query), _BY_FAMILY, _REQUEST | _DUMP, 1, 0) + query)
    connections: list[tuple[bytes, bytes, Connection]] = []
    while True:
        data = netlink.recv(1 << 18)
        for kind, body in _messages(data):
            if kind == _ERROR:
                raise OSError("netlink refuses the question")
            if kind == _DONE:
                yield from (each for _, _, each in connections) if within else _to_others(connections)
                return
            if (each := _connection(body)) is not None:
                connections.append(each)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        yield kind, data[_HEADER.size : length]
        data = data[(length + 3) & ~3 :]


def _connection(body: bytes) -> tuple[bytes, bytes, Connection] | None:
    """Returns the two addresses, and the connection."""
    *_, source, destination, _, _, _, _, _, waiting, _, inode = _MESSAGE.unpack_from(body)
    place = _MESSAGE.size
    while place + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, place)
        info = body[place + _ATTRIBUTE.size : place + length]
        if kind == _INFO and len(info) >= _RECEIVER_LIMITED + 8:
            counters = (struct.unpack_from("=Q", info, offset)[0] for offset in (_ACKED, _RECEIVED, _RECEIVER_LIMITED))
            return source, destination, Connection(inode, waiting, *counters)
        place += max(4, (length + 3) & ~3)
    return None


def _to_others(connections: Iterable[tuple[bytes, bytes, Connection]]) -> Iterator[Connection]:
    """Leaves out connections within this machine: both of their ends are here."""
    connections = list(connections)
    mine = {source for source, _, _ in connections}
    for _, destination, connection in connections:
        if destination not in mine and not _is_loopback(destination):
            yield connection


def _is_loopback(address: bytes) -> bool:
    mapped = address[12:16] if address[:12] == bytes(10) + b"\xff\xff" else address
    return mapped[0] == 127 or address == bytes(15) + b"\x01"
