"""What this process is in the cluster, in the words of Horovod and MPI: role, rank, size.

A task has a rank when it runs the training program: the chief first, then the workers by index. Under strategies whose workers
only serve (ParameterServer, Hogwild) that is the chief alone. A `ps` and an `evaluator` never have one.

The answers come from the description that `tfdist.strategy` uses: the one given to it in this process, else that of the
environment, else none, when this process is the chief and the only task. They do not import TensorFlow, and may be asked for at
any time. Where the environment knows ranks but no hosts, questions about hosts that it does not answer make the ranks meet.
"""

from collections import Counter

from tfdist.choice import SERVED, choose, prepared
from tfdist.cluster import Cluster, Task
from tfdist.create_strategy import membership_here, this_cluster


def role() -> str:
    """The job of this process: `chief`, `worker`, `ps` or `evaluator`.

    Worker 0 of a cluster that has ps tasks and no chief runs the chief's program, and its role is `chief`. Without ps it
    stays a `worker`, as TensorFlow has it, and `is_chief()` is true.

    Raises:
        ClusterError: for a bad environment; so do all functions here.
    """
    return _here()[1].job


def is_chief() -> bool:
    """Whether this process is the one that saves and logs: the chief, or worker 0 where there is no chief."""
    cluster, task = _here()
    return task.job == "chief" or (task.job == "worker" and task.index == 0 and _ranked(cluster)[:1] == (task,))


def rank() -> int | None:
    """The number of this process among those that run the training program, from 0; None on a task that does not.

    None is on purpose no error: an evaluator runs the same program, and `if tfdist.rank() == 0:` is rightly false there.
    """
    cluster, task = _here()
    return _position(task, _ranked(cluster))


def size() -> int:
    """The number of tasks whose gradients are averaged into one update, at least 1: what a learning rate is scaled by.

    Without ps: chief and workers, as many as there are ranks. With ps: the workers of one group, since groups update the
    parameters each by themselves (asynchronously): their gradients add up, one after the other, without scaling. Where tasks
    have several devices, `strategy.num_replicas_in_sync` counts these too.
    """
    cluster, _ = _here()
    if choose(cluster).strategy not in SERVED:
        return max(1, len(_ranked(cluster)))
    owners = [worker.index for worker in cluster.job("worker") for _ in range(worker.slots)]
    return max((len({owners[number] for number in group}) for group in cluster.worker_groups), default=1)


def local_rank() -> int | None:
    """The number of this process among the ranks on its host, from 0; None where `rank()` is None."""
    rank_info = membership_here()
    if rank_info is not None and rank_info.local_rank is not None and not rank_info.known:
        return rank_info.local_rank
    cluster, task = _here(with_hosts=True)
    return _position(task, _on_host_of(task, cluster))


def local_size() -> int:
    """The number of ranks on the host of this process; 0 on a host of ps and evaluator tasks only."""
    rank_info = membership_here()
    if rank_info is not None and rank_info.local_size is not None and not rank_info.known:
        return rank_info.local_size
    cluster, task = _here(with_hosts=True)
    return len(_on_host_of(task, cluster))


def cross_rank() -> int | None:
    """The number of this process' host among the hosts that have a rank with its `local_rank()`, from 0; None without rank.

    Horovod's word; where every host has equally many ranks it is the number of the host (torchrun's GROUP_RANK).
    """
    cluster, task = _here(with_hosts=True)
    return _position(task, _across(task, cluster))


def cross_size() -> int:
    """The number of hosts that have a rank with this process' `local_rank()`; 0 on a task without rank."""
    cluster, task = _here(with_hosts=True)
    return len(_across(task, cluster))


def _here(*, with_hosts: bool = False) -> tuple[Cluster, Task]:
    """The cluster as its strategy runs it, with hosts, and this process' task in it."""
    described = this_cluster(with_hosts=with_hosts)
    if described.task is not None and described.task[0] == "evaluator":
        return described.addressed(), described.find(*described.task)
    cluster = prepared(described).addressed()
    name = described.task
    if name == ("worker", 0) and cluster.job("chief") and not described.job("chief"):
        name = ("chief", 0)  # Beside worker 0, which is its child: see `tfdist.create_strategy.strategy`.
    if name is None:
        return cluster, next(iter(cluster.training_tasks))
    return cluster, cluster.find(*name)


def _ranked(cluster: Cluster) -> tuple[Task, ...]:
    """The tasks that run the training program, by rank."""
    if not cluster.training_tasks:
        return ()
    workers = () if choose(cluster).strategy in SERVED else cluster.job("worker")
    return (*cluster.job("chief"), *workers)


def _on_host_of(task: Task, cluster: Cluster) -> tuple[Task, ...]:
    host = (task.host or "localhost").lower()
    return tuple(other for other in _ranked(cluster) if (other.host or "localhost").lower() == host)


def _across(task: Task, cluster: Cluster) -> tuple[Task, ...]:
    """The ranks with the local rank of `task`, one on each host that has one; empty where it has no rank."""
    mine = _position(task, _on_host_of(task, cluster))
    seen: Counter[str] = Counter()
    across = []
    for other in _ranked(cluster):
        host = (other.host or "localhost").lower()
        if seen[host] == mine:
            across.append(other)
        seen[host] += 1
    return tuple(across)


def _position(task: Task, tasks: tuple[Task, ...]) -> int | None:
    return tasks.index(task) if task in tasks else None
