"""`meet`: runs the rendezvous of this process.

One process leads: the first of `RankInfo.servers`, or else rank 0. The store holds four tables:

* `leaders`: a leader writes its member info under a random name, its nonce, every few seconds with another `beat`.
* `members`: every other process writes its member info, with the nonces of the leaders that it has read. Entries of an earlier
  run name no leader of this run, and are ignored.
* `verdicts`: when every process has answered, the leader writes the roster. It may write an error instead. A process accepts
  only a roster that contains its nonce.
* `read`: every process confirms that it has read the verdict. Then the leader removes all entries of the run, or closes the
  store.
"""

from tfdist.cluster import Cluster
from tfdist.launch.rendezvous.leader import READ_SECONDS, Leader
from tfdist.launch.rendezvous.member import Member
from tfdist.launch.rendezvous.member_info import leader_task
from tfdist.launch.rendezvous.stores import open_store
from tfdist.rank_info import RankInfo


def meet(rank_info: RankInfo, timeout_seconds: float = 300.0) -> Cluster:
    """Exchanges addresses with the other processes of the job; returns the cluster, in which rank r is `worker:r`.

    The port of this process stays held (`tfdist.launch.backends.local.ports`) until TensorFlow's server takes it. A job of one
    rank returns at once.

    Args:
        rank_info: rank and store of this process.
        timeout_seconds: limit for the whole rendezvous: until the store answers, all processes are there and have answered.
            A member waits two seconds longer for the verdict of a leader that it has seen.

    Raises:
        StartTimeoutError: when ranks are missing or the store does not answer; the message names them.
        ClusterError: when the processes contradict each other (a rank twice, different sizes), or have no store.
    """
    if rank_info.size == 1 and not rank_info.servers:
        return rank_info.outline()
    if rank_info.store is None:
        raise rank_info.source.error(
            f"this process is rank {rank_info.rank} of {rank_info.size}, but nothing says where the others are; name the "
            "hosts, for example tfdist.strategy('horovodrun -np 4 -H a:2,b:2') or --cluster hostfile"
        )
    is_leader = rank_info.task == leader_task(rank_info)
    lifetime = timeout_seconds + READ_SECONDS
    store = open_store(rank_info, serve=is_leader, lifetime_seconds=lifetime, timeout_seconds=timeout_seconds)
    return (Leader if is_leader else Member)(rank_info, store, timeout_seconds).run()
