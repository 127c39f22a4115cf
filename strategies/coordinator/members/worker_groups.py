"""Worker groups: which tasks and devices they have.

Groups are asynchronous of each other. The workers of a group are the replicas of one function: together they make one step on
one batch. They are devices of one task, or tasks.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass

from tfdist.cluster import Cluster, Task

_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class WorkerGroup:
    """A worker group.

    Attributes:
        number: its place among the groups, from 0.
        devices: the full name of each replica's device, the first one if it has several. The first is the leader's.
        traced_devices: the devices that its functions are traced for. If all replicas are in one task, the names leave out the
            task, and groups that look alike share their functions.
        tasks: the indices of its worker tasks, the leader's first.
        rows: all devices of each replica, named as in `traced_devices`.
    """

    number: int
    devices: tuple[str, ...]
    traced_devices: tuple[str, ...]
    tasks: tuple[int, ...]
    rows: tuple[tuple[str, ...], ...] = ()


def groups_of(cluster: Cluster, devices: set[str], absent: Collection[Task] = ()) -> list[WorkerGroup]:
    """Returns the worker groups of a cluster.

    Args:
        cluster: the prepared cluster.
        devices: the names of all its devices, as in `tf.config.list_logical_devices`.
        absent: the workers that have not joined yet. They are taken to be like the others.
    """
    places = [(task, slot) for task in cluster.job("worker") for slot in range(task.slots)]
    kinds = {task.name: _kind_of_device(task, devices) for task in cluster.job("worker") if task not in absent}
    kinds |= dict.fromkeys((task.name for task in absent), "GPU" if "GPU" in kinds.values() else "CPU")
    groups = []
    for number, ranks in enumerate(cluster.worker_groups):
        full = []
        for rank in ranks:
            task, slot = places[rank]
            prefix = f"/job:worker/replica:0/task:{task.index}/device:"
            full.append(f"{prefix}{kinds[task.name]}:{slot}")
        tasks = tuple(dict.fromkeys(places[rank][0].index for rank in ranks))
        traced = full if len(tasks) > 1 else [f"/{name.rpartition('/')[2]}" for name in full]
        size = cluster.replica_slots
        rows = tuple(tuple(traced[first : first + size]) for first in range(0, len(traced), size))
        groups.append(WorkerGroup(number, tuple(full[::size]), tuple(traced[::size]), tasks, rows))
    return groups


def _kind_of_device(task: Task, devices: set[str]) -> str:
    """Returns `GPU` if the task has a GPU for each slot, else `CPU`; warns of GPUs that are missing or stay unused."""
    gpus = sum(name.startswith(f"/job:worker/replica:0/task:{task.index}/device:GPU:") for name in devices)
    if gpus > task.slots:
        _log.warning("%s has %d slots and uses as many of its %d GPUs; describe %d slots", task.name, task.slots, gpus, gpus)
    elif gpus < task.slots and (gpus or task.gpus):
        wanted = task.gpus or task.slots
        _log.warning("%s asks for %d GPUs, and TensorFlow finds %d there; it computes on the CPU", task.name, wanted, gpus)
    return "GPU" if gpus >= task.slots else "CPU"


def peers(cluster: Cluster) -> dict[int, set[int]]:
    """Returns, for the index of each worker task, the worker tasks that are in the same groups."""
    peers: dict[int, set[int]] = {task.index: set() for task in cluster.job("worker")}
    for tasks in cluster.group_tasks:
        group = {task.index for task in tasks}
        for task in group:
            peers[task] |= group - {task}
    return peers
