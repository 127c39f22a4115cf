"""`OpenStore`: what the rendezvous needs of a store, and what the stores share."""

import hashlib
import socket
from typing import Protocol

from tfdist.rank_info import RankInfo

CALL_SECONDS = 5.0
"""Longest wait for the answer to one call of a store."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class StoreUnavailableError(Exception):
    """The store does not answer, or not yet. The message says why. The rendezvous repeats the call until its timeout."""


class OpenStore(Protocol):
    """The tables of one run: table -> field -> text. Tables are those of `meet.py`, fields are hexadecimal numbers.

    Every method but `close` may raise StoreUnavailableError (call again) or ClusterError (a further call would fail, too). A
    missing table is empty. A store that was restarted is empty: processes write their entries again.
    """

    def put(self, table: str, field: str, text: str) -> None:
        """Sets one field."""

    def get(self, table: str) -> dict[str, str]:
        """Returns all fields of a table."""

    def remove(self, table: str, field: str) -> None:
        """Removes a field, if it exists."""

    def clear(self) -> None:
        """Removes all tables of the run."""

    def own_host(self) -> str:
        """Returns the name or address under which the other processes can probably reach this one."""

    def close(self) -> None:
        """Closes the connection, and the store where this process serves it. Does not raise."""


def run_key(rank_info: RankInfo) -> str:
    """Returns a short name for the run id, which may be any text: 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(rank_info.run_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def host_towards(connected: socket.socket, store_host: str) -> str:
    """Returns the local address of a connection to the store; the store's own name where the store is on this machine.

    A machine reaches itself over its loopback address, even under a name that leads other machines to another address
    (Debian's /etc/hosts has `127.0.1.1` for the machine's own name).
    """
    address = str(connected.getsockname()[0]).partition("%")[0].removeprefix("::ffff:")
    return store_host if address.startswith("127.") or address == "::1" else address
