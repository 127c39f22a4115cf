"""What the rendezvous needs of a store, whatever it is kept in: a few small tables that every process of the job can write.

One file per kind, in `KINDS`: `rendezvous/stores/tcp.py`, `rendezvous/stores/folder.py`, `rendezvous/stores/redis.py`.
"""

import hashlib
import importlib
import socket
from typing import Protocol

from tfdist.rank_info import RankInfo

KINDS = {
    "tcp": "tfdist.launch.rendezvous.stores.tcp",
    "file": "tfdist.launch.rendezvous.stores.folder",
    "redis": "tfdist.launch.rendezvous.stores.redis",
}
"""Kind of store -> module, which has `open_store(membership, is_host)`."""

CALL_SECONDS = 5.0
"""Longest that one call of a store waits for an answer."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class StoreUnavailableError(Exception):
    """The store does not answer, or not yet. The rendezvous tries again until its own limit; the message says why."""


class OpenStore(Protocol):
    """Tables of one run: table -> field -> text. Fields are names of hexadecimal digits, tables those of `rendezvous`.

    Every method may raise StoreUnavailableError (try again) and ClusterError (it is no use). A table that is not there is
    empty, and what was put may be gone after the store was started anew: who needs it, puts it again.
    """

    def put(self, table: str, field: str, text: str) -> None:
        """Sets one field."""
        ...

    def get(self, table: str) -> dict[str, str]:
        """All fields of a table."""
        ...

    def remove(self, table: str, field: str) -> None:
        """Takes a field away, if it is there."""
        ...

    def clear(self) -> None:
        """Takes everything of this run away."""
        ...

    def my_host(self) -> str:
        """The name or address under which other processes of the job probably reach this one."""
        ...

    def close(self) -> None:
        """Ends the connection, and the store if this process serves it. Does not raise."""
        ...


def open_store(rank_info: RankInfo, is_host: bool, lifetime_seconds: float) -> OpenStore:
    """Opens the store of `membership`, without waiting for it.

    Args:
        membership: with a store.
        is_host: whether this process serves the store, where the store is one that a process of the job serves.
        lifetime_seconds: after how long a store that others run may forget what was put, if nobody has taken it away.
    """
    assert rank_info.store is not None
    module = importlib.import_module(KINDS[rank_info.store.kind])
    store: OpenStore = module.open_store(rank_info, is_host, lifetime_seconds)
    return store


def run_key(rank_info: RankInfo) -> str:
    """The run id, which may be any text, as a short name: 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(rank_info.run_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def host_towards(connected: socket.socket, store_host: str) -> str:
    """The address of this end of a connection to the store; the store's own name where it is on this machine.

    A machine reaches itself over its loopback address even under a name that leads others to another one (Debian's /etc/hosts
    has `127.0.1.1` for the machine's own name).
    """
    address = str(connected.getsockname()[0]).partition("%")[0].removeprefix("::ffff:")
    return store_host if address.startswith("127.") or address == "::1" else address
