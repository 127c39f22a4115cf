"""Role, rank and size of this process, in the words of Horovod and MPI.

A task has a rank when it runs the training program: first the chief, then the workers by index. Under ParameterServer and
Hogwild the workers only serve, and the chief alone has a rank. A `ps` or an `evaluator` never has one.

The answers come from the cluster of this process: the one given to `tfdist.strategy`, else that of the environment, else a
single chief. These functions do not import TensorFlow and work before and after `tfdist.strategy`. Where the environment gives
ranks but no hosts, `local_rank` and the functions below it may start a rendezvous of the ranks.
"""

from collections import Counter

from tfdist.choice import SERVED, choose, prepared
from tfdist.cluster import Cluster, Task
from tfdist.create_strategy import rendezvous
from tfdist.process_cluster import current_cluster, current_rank_info


def role() -> str:
    """Returns the job of this process: `chief`, `worker`, `ps` or `evaluator`.

    Under ParameterServer and Hogwild, in a cluster without a chief, worker 0 runs the chief's program and its role is `chief`.
    Under other strategies it is `worker`, as in TensorFlow, and `is_chief()` is true.

    Raises:
        ClusterError: for a bad environment, as every function here does.
    """
    return _cluster_and_task()[1].job


def is_chief() -> bool:
    """Returns whether this process saves and logs: whether it is the chief, or worker 0 of a cluster without a chief."""
    cluster, task = _cluster_and_task()
    return task.job == "chief" or (task.job == "worker" and task.index == 0 and _ranked_tasks(cluster)[:1] == (task,))


def rank() -> int | None:
    """Returns the rank of this process among those that run the training program, from 0; None on other tasks.

    None is not an error: an evaluator runs the same program, and `if tfdist.rank() == 0:` is false there, as it should be.
    """
    cluster, task = _cluster_and_task()
    return _position(task, _ranked_tasks(cluster))


def size() -> int:
    """Returns the number of tasks whose gradients make up one update, at least 1: the factor for the learning rate.

    In data parallel training these are the chief and the workers, one per rank. Under ParameterServer and Hogwild they are the
    worker tasks of the largest group: groups update the parameters one after the other, which needs no scaling. Where tasks
    have several devices, `strategy.num_replicas_in_sync` counts the devices.
    """
    cluster, _ = _cluster_and_task()
    if choose(cluster).strategy not in SERVED:
        return max(1, len(_ranked_tasks(cluster)))
    worker_of_slot = [worker.index for worker in cluster.job("worker") for _ in range(worker.slots)]
    return max((len({worker_of_slot[slot] for slot in group}) for group in cluster.worker_groups), default=1)


def local_rank() -> int | None:
    """Returns the rank of this process among the ranks on its host, from 0; None where `rank()` is None."""
    rank_info = current_rank_info()
    if rank_info is not None and rank_info.local_rank is not None and not rank_info.servers:
        return rank_info.local_rank
    cluster, task = _cluster_and_task(with_hosts=True)
    return _position(task, _ranked_on_host_of(task, cluster))


def local_size() -> int:
    """Returns the number of ranks on the host of this process; 0 on a host with ps and evaluator tasks only."""
    rank_info = current_rank_info()
    if rank_info is not None and rank_info.local_size is not None and not rank_info.servers:
        return rank_info.local_size
    cluster, task = _cluster_and_task(with_hosts=True)
    return len(_ranked_on_host_of(task, cluster))


def cross_rank() -> int | None:
    """Returns the position of this host among the hosts that have a rank with this `local_rank()`, from 0; None without a rank.

    The name is Horovod's. Where all hosts have equally many ranks, it is the number of the host (torchrun's GROUP_RANK).
    """
    cluster, task = _cluster_and_task(with_hosts=True)
    return _position(task, _ranked_across_hosts(task, cluster))


def cross_size() -> int:
    """Returns the number of hosts that have a rank with this process' `local_rank()`; 0 on a task without a rank."""
    cluster, task = _cluster_and_task(with_hosts=True)
    return len(_ranked_across_hosts(task, cluster))


def _cluster_and_task(*, with_hosts: bool = False) -> tuple[Cluster, Task]:
    """Returns the cluster as its strategy runs it, and the task of this process in it."""
    described = current_cluster(rendezvous) if with_hosts else current_cluster()
    if described.task is not None and described.task[0] == "evaluator":
        return described.addressed(), described.find(*described.task)
    cluster = prepared(described).addressed()
    own_task = described.task
    if own_task is None:
        return cluster, next(iter(cluster.training_tasks))
    if own_task == ("worker", 0) and cluster.job("chief") and not described.job("chief"):
        own_task = ("chief", 0)  # The process of worker 0 becomes the chief, and starts worker 0 as its child.
    return cluster, cluster.find(*own_task)


def _ranked_tasks(cluster: Cluster) -> tuple[Task, ...]:
    """Returns the tasks that run the training program, by rank."""
    if not cluster.training_tasks:
        return ()
    workers = () if choose(cluster).strategy in SERVED else cluster.job("worker")
    return (*cluster.job("chief"), *workers)


def _ranked_on_host_of(task: Task, cluster: Cluster) -> tuple[Task, ...]:
    """Returns the tasks with a rank on the host of `task`, by rank."""
    return tuple(other for other in _ranked_tasks(cluster) if other.machine == task.machine)


def _ranked_across_hosts(task: Task, cluster: Cluster) -> tuple[Task, ...]:
    """Returns one task per host: the one with the local rank of `task`. Empty where `task` has no rank."""
    local_rank = _position(task, _ranked_on_host_of(task, cluster))
    ranks_on_host: Counter[str] = Counter()
    across = []
    for other in _ranked_tasks(cluster):
        if ranks_on_host[other.machine] == local_rank:
            across.append(other)
        ranks_on_host[other.machine] += 1
    return tuple(across)


def _position(task: Task, tasks: tuple[Task, ...]) -> int | None:
    return tasks.index(task) if task in tasks else None
