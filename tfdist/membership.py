"""`Membership`: what a process knows of its job where the description gives ranks but no addresses.

PyTorch, Caffe2, Horovod's environment and Paddle's trainers tell a process its rank and how many there are, and a store where
all of them meet. `tfdist.launch.rendezvous.meet` makes a `Cluster` of it, once every rank has said where it is.
"""

from dataclasses import dataclass

from tfdist.cluster import Cluster, Task
from tfdist.errors import Source


@dataclass(frozen=True)
class Store:
    """Where the ranks of a job meet.

    Attributes:
        kind: `tcp` (a store served by rank 0), `file` (a folder that all ranks share) or `redis`.
        host: of the tcp or redis store; None for `file`.
        port: of the tcp or redis store; None for `file`.
        path: the folder of the `file` store; None for the others.
        password: of the redis store, or None. Never shown.
    """

    kind: str
    host: str | None = None
    port: int | None = None
    path: str | None = None
    password: str | None = None


@dataclass(frozen=True)
class Membership:
    """One rank of a job that trains without a list of addresses.

    Attributes:
        size: ranks in the whole job, at least 1.
        rank: of this process, 0 to `size` - 1.
        source: where it was read.
        store: where the ranks meet, or None where the description names none (then the user has to).
        run_id: tells runs apart that use one store; goes into every key.
        local_rank: of this process among the ranks on its host, or None where it is not said.
        local_size: ranks on this host, or None.
        slots: devices of this process, at least 1.
        known: tasks whose addresses the description does give (Paddle's pservers); they do not take part in the meeting.
        host: name or address under which the others reach this process, or None to find it out.
    """

    size: int
    rank: int
    source: Source
    store: Store | None = None
    run_id: str = ""
    local_rank: int | None = None
    local_size: int | None = None
    slots: int = 1
    known: tuple[Task, ...] = ()
    host: str | None = None

    def outline(self) -> Cluster:
        """The cluster as far as it is known without a meeting: rank r is `worker:r`, and the workers' addresses are open."""
        workers = tuple(Task("worker", rank, slots=self.slots) for rank in range(self.size))
        return Cluster((*workers, *self.known), source=self.source, task=("worker", self.rank))
