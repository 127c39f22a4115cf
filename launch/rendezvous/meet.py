"""The rendezvous: processes that know only their ranks meet in a store, and every one of them leaves with the same Cluster.

One process leads, the first of the known tasks or else rank 0. Four tables hold what is said:

* `leaders`: a leader announces itself under a name drawn at random, its nonce.
* `members`: every other process announces itself, and answers the leaders that it sees by their nonces. What a run that is over
  has left in the store answers no leader of this run, and so is never taken for one of its ranks.
* `verdicts`: the leader puts the roster once everybody has answered, or what is wrong. A process takes only a roster in which
  it stands with its nonce.
* `read`: who has read the verdict. When all have, the leader takes everything of the run out of the store, or closes it.
"""

from tfdist.cluster import Cluster
from tfdist.launch.rendezvous.leader import READ_SECONDS, Leader
from tfdist.launch.rendezvous.member import Member
from tfdist.launch.rendezvous.member_info import leader_of
from tfdist.launch.rendezvous.stores.store import open_store
from tfdist.rank_info import RankInfo


def meet(rank_info: RankInfo, timeout_seconds: float = 300.0) -> Cluster:
    """Meets the other processes of the job and returns the cluster of all, in which rank r is `worker:r`.

    The port of this process stays held (`tfdist.launch.backends.local.ports`) until TensorFlow's server takes it. A job of one rank meets
    nobody.

    Args:
        membership: what this process knows.
        timeout_seconds: for everything together: the store to come up, the others to come, and their answers. The verdict of a
            leader that is there is waited for two seconds longer.

    Raises:
        StartTimeoutError: when ranks did not come in time, or the store did not answer; the message names them.
        ClusterError: when the processes contradict each other (a rank twice, different sizes), or no store is given.
    """
    if rank_info.size == 1 and not rank_info.servers:
        return rank_info.outline()
    if rank_info.store is None:
        raise rank_info.source.error(
            f"this process is rank {rank_info.rank} of {rank_info.size}, but nothing says where the others are; name the "
            "hosts, for example tfdist.strategy('horovodrun -np 4 -H a:2,b:2') or --cluster hostfile"
        )
    leads = rank_info.task == leader_of(rank_info)
    store = open_store(rank_info, leads, timeout_seconds + READ_SECONDS)
    return (Leader if leads else Member)(rank_info, store, timeout_seconds).run()
