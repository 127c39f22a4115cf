"""`RankInfo`: what a process knows of its job where the description gives ranks but no addresses.

PyTorch, Caffe2, Horovod's environment and Paddle's trainers tell a process its rank and how many there are, and a store where
all of them meet. `tfdist.launch.rendezvous.meet.meet` makes a `Cluster` of it, once every rank has said where it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tfdist.cluster import Cluster, Task
from tfdist.errors import Source


@dataclass(frozen=True)
class Store:
    """Where the ranks of a job meet.

    Attributes:
        kind: `tcp` (a store served by the first of `known`, else by rank 0), `file` (a folder that all ranks share) or `redis`.
        host: of the tcp or redis store; None for `file`.
        port: of the tcp or redis store; None for `file`.
        ports: how many ports from `port` on the tcp store may be at, where some may be taken by others; at least 1.
        path: the folder of the `file` store; None for the others.
        password: of the redis store, or None. Never shown.
    """

    kind: str
    host: str | None = None
    port: int | None = None
    ports: int = 1
    path: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class RankInfo:
    """One process of a job that trains without a list of addresses.

    Attributes:
        size: ranks in the whole job, at least 1.
        rank: of this process, 0 to `size` - 1; None where it is one of `known`.
        source: where it was read.
        store: where the ranks meet, or None where the description names none (then the user has to).
        run_id: tells runs apart that use one store; goes into every key.
        local_rank: of this process among the ranks on its host, or None where it is not said.
        local_size: ranks on this host, or None.
        slots: devices of this process, at least 1.
        gpus: how many of the slots are GPUs according to the description.
        known: tasks whose addresses the description does give (Paddle's pservers). They come to the meeting too, to hear where
            the ranks are.
        known_task: which of `known` this process is, as (job, index); None for a rank.
        synchronous: with ps among `known`, whether all workers step together; without ps they always do.
        host: name or address under which the others reach this process, or None to find it out.
    """

    size: int
    rank: int | None
    source: Source
    store: Store | None = None
    run_id: str = ""
    local_rank: int | None = None
    local_size: int | None = None
    slots: int = 1
    gpus: int = 0
    known: tuple[Task, ...] = ()
    known_task: tuple[str, int] | None = None
    synchronous: bool = False
    host: str | None = None

    @property
    def task(self) -> tuple[str, int]:
        """What this process is in the cluster: rank r is `worker:r`."""
        return self.known_task or ("worker", self.rank or 0)

    def cluster(self, workers: Iterable[Task]) -> Cluster:
        """The cluster of `workers` and the known tasks, with this process' task."""
        workers = tuple(workers)
        together = (tuple(range(sum(task.slots for task in workers))),) if self.synchronous else ()
        return Cluster((*workers, *self.known), worker_groups=together, source=self.source, task=self.task)

    def outline(self) -> Cluster:
        """The cluster as far as it is known without a meeting: the workers' addresses are open."""
        return self.cluster(Task("worker", rank, slots=self.slots, gpus=self.gpus) for rank in range(self.size))
