"""The stores in which processes exchange addresses: a few small tables that every process of the job reads and writes.

Start reading at `interface.py`, which defines a store. `tcp.py` connects to the store that the leader serves (`tcp_server.py`)
over a `tcp_channel.py`; both ends use `authentication.py`, and `tables.py` limits what others may write. `folder.py` uses a
shared folder, `redis.py` a Redis server; `bounded.py` limits the time of calls that the system may never finish. Stores import
`tfdist.rank_info`, `tfdist.messages` and `tfdist.errors` only.
"""

from tfdist.launch.rendezvous.stores.folder import FolderStore
from tfdist.launch.rendezvous.stores.interface import OpenStore
from tfdist.launch.rendezvous.stores.redis import RedisStore
from tfdist.launch.rendezvous.stores.tcp import TcpStore
from tfdist.rank_info import RankInfo


def open_store(rank_info: RankInfo, *, serve: bool, lifetime_seconds: float, timeout_seconds: float) -> OpenStore:
    """Returns the store of `rank_info`, without waiting for it.

    Args:
        rank_info: rank info with a store.
        serve: whether this process serves the store, where a process of the job has to (`tcp`).
        lifetime_seconds: time after which a store that outlives the job (`redis`) may forget the entries of the run.
        timeout_seconds: the limit of the rendezvous, after which no call waits for long.

    Raises:
        ClusterError: when the client library of the store is missing, and for a secret that is too short.
    """
    assert rank_info.store is not None
    match rank_info.store.kind:
        case "tcp":
            return TcpStore(rank_info, timeout_seconds, serve=serve)
        case "file":
            return FolderStore(rank_info, timeout_seconds)
        case "redis":
            return RedisStore(rank_info, lifetime_seconds, timeout_seconds)
    raise AssertionError(rank_info.store.kind)
