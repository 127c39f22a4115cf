"""`RankInfo`: one process of a job, described by its rank and without the addresses of the other processes.

PyTorch, Caffe2, Horovod's environment and Paddle's trainers give a process its rank, the number of ranks and sometimes a store.
In the store, `tfdist.launch.rendezvous.meet.meet` exchanges the addresses of all ranks and returns a `Cluster`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tfdist.cluster import Cluster, Task
from tfdist.errors import ClusterError, Source


@dataclass(frozen=True)
class Store:
    """The store in which the ranks of a job exchange their addresses.

    Attributes:
        kind: `tcp` (served by the first of `RankInfo.servers`, else by rank 0), `file` (a folder that all ranks share) or
            `redis`.
        host: host of the tcp or redis store; None for `file`.
        port: port of the tcp or redis store; None for `file`.
        ports: number of ports, from `port` on, at which the tcp store may listen when others are taken; at least 1.
        path: folder of the `file` store; None for the others.
        password: password of the redis store, or None. No message contains it.
    """

    kind: str
    host: str | None = None
    port: int | None = None
    ports: int = 1
    path: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class RankInfo:
    """One process of a job whose description gives ranks, but no addresses.

    Attributes:
        size: number of ranks in the job, at least 1.
        rank: rank of this process, 0 to `size` - 1; None for one of `servers`.
        source: where it was read; not compared.
        store: where the ranks exchange addresses; None where the description names no store.
        run_id: identifies the run among others that use the same store; part of every key.
        local_rank: rank of this process among the ranks on its host; None where the description does not give it.
        local_size: number of ranks on this host, or None.
        slots: devices of this process, at least 1.
        gpus: number of the slots that are GPUs according to the description.
        servers: ps tasks whose addresses the description gives (Paddle's pservers). They take part in the rendezvous to learn
            the addresses of the ranks.
        server_task: (job, index) of this process where it is one of `servers`; None for a rank.
        synchronous: with `servers`, whether all workers step together; without servers they always do.
        host: name or address under which other processes reach this one; None to find it out.
    """

    size: int
    rank: int | None
    source: Source = field(compare=False)
    store: Store | None = None
    run_id: str = ""
    local_rank: int | None = None
    local_size: int | None = None
    slots: int = 1
    gpus: int = 0
    servers: tuple[Task, ...] = ()
    server_task: tuple[str, int] | None = None
    synchronous: bool = False
    host: str | None = None

    @property
    def task(self) -> tuple[str, int]:
        """(job, index) of this process in the cluster: rank r is `worker:r`."""
        return self.server_task or ("worker", self.rank or 0)

    def cluster(self, workers: Iterable[Task]) -> Cluster:
        """Returns the cluster of `workers` and `servers`, with the task of this process."""
        workers = tuple(workers)
        one_group = (tuple(range(sum(task.slots for task in workers))),) if self.synchronous else ()
        return Cluster((*workers, *self.servers), worker_groups=one_group, source=self.source, task=self.task)

    def outline(self) -> Cluster:
        """Returns the cluster as far as this process knows it: the addresses of the workers are open."""
        return self.cluster(Task("worker", rank, slots=self.slots, gpus=self.gpus) for rank in range(self.size))


class UnplacedError(ClusterError):
    """A command line that counts the processes of a job, and leaves to the shell or the launcher where they meet and which of
    them are here: the `outline` is the cluster without its addresses or without the task of this process."""

    def __init__(self, fault: ClusterError, outline: Cluster) -> None:
        super().__init__(*fault.args)
        self.outline = outline
