"""Ports and networks of this machine that a test has for itself until its process ends: nobody takes one before it is used."""

import random
import socket
from collections.abc import Iterator, Sequence

_PORTS = range(24_000, 32_768)
"""Linux gives later ones to connections, and to whoever binds any port (net.ipv4.ip_local_port_range)."""

_NETWORKS = range(20, 220)

_names: list[socket.socket] = []


def _reserved(kind: str, numbers: Sequence[int]) -> Iterator[int]:
    """Yields numbers that this generator yields to nobody else on this machine while this process lives."""
    while True:
        number = random.SystemRandom().choice(numbers)  # Not from the generator whose seed a test may set.
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0tfdist-test-{kind}-{number}")  # Linux gives a name to one socket, and takes it back with the process.
        except OSError:
            name.close()
            continue
        _names.append(name)
        yield number


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody has bound."""
    found: list[int] = []
    for port in _reserved("port", _PORTS):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            break
    return found


def free_port() -> int:
    """Returns a port that nobody has bound."""
    return free_ports(1)[0]


def free_network() -> int:
    """Returns N of a network 10.N.7.0/24."""
    return next(_reserved("network", _NETWORKS))
