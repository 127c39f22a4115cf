"""Worker groups, and TensorFlow's coordinator with one queue reader per group.

Groups are asynchronous of each other. The workers of a group are the replicas of one function: together they make one step on
one batch. They are devices of one task, or tasks.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.strategies.private_api import CoordinatorWorker, count_if_scheduled_for_reader, use_own_executor
from tfdist.strategies.private_api.overrides import overrides

_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class WorkerGroup:
    """A worker group.

    Attributes:
        number: its place among the groups, from 0.
        devices: the full name of each replica's device. The first is the leader's.
        traced_devices: the devices that its functions are traced for. If all replicas are in one task, the names leave out the
            task, and groups that look alike share their functions.
        tasks: the indices of its worker tasks, the leader's first.
    """

    number: int
    devices: tuple[str, ...]
    traced_devices: tuple[str, ...]
    tasks: tuple[int, ...]


class _QueueReader(CoordinatorWorker):  # type: ignore[misc]
    """TensorFlow's thread of a group, with an executor for it alone: it does not wait for calls of other groups."""

    @overrides(CoordinatorWorker)
    def _process_queue(self) -> None:
        self._tfdist_executor = use_own_executor()
        super()._process_queue()

    @overrides(CoordinatorWorker)
    def _process_closure(self, closure: Any) -> None:
        count_if_scheduled_for_reader(self, closure)
        super()._process_closure(closure)


def groups_of(cluster: Cluster, devices: set[str]) -> list[WorkerGroup]:
    """Returns the worker groups of a cluster.

    Args:
        cluster: the prepared cluster.
        devices: the names of all its devices, as in `tf.config.list_logical_devices`.
    """
    places = [(task, slot) for task in cluster.job("worker") for slot in range(task.slots)]
    kinds = {task.name: _kind_of_device(task, devices) for task in cluster.job("worker")}
    groups = []
    for number, ranks in enumerate(cluster.worker_groups):
        full = []
        for rank in ranks:
            task, slot = places[rank]
            prefix = f"/job:worker/replica:0/task:{task.index}/device:"
            full.append(f"{prefix}{kinds[task.name]}:{slot}")
        tasks = tuple(dict.fromkeys(places[rank][0].index for rank in ranks))
        traced = full if len(tasks) > 1 else [f"/{name.rpartition('/')[2]}" for name in full]
        groups.append(WorkerGroup(number, tuple(full), tuple(traced), tasks))
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
    task_of_rank = [task.index for task in cluster.job("worker") for _ in range(task.slots)]
    peers: dict[int, set[int]] = {task.index: set() for task in cluster.job("worker")}
    for ranks in cluster.worker_groups:
        group = {task_of_rank[rank] for rank in ranks}
        for task in group:
            peers[task] |= group - {task}
    return peers


def coordinator_of(strategy: Any, groups: Sequence[WorkerGroup]) -> "tf.distribute.coordinator.ClusterCoordinator":
    """Returns TensorFlow's coordinator for worker groups: each function that is scheduled runs on the leader of one group."""
    strategy._num_workers = 0  # The coordinator would start one queue reader for each worker task.
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    strategy._num_workers = len(groups)
    cluster = coordinator._cluster
    cluster._num_workers = len(groups)
    cluster._transient_timeouts_threshold = len(groups) // 10  # The value that TensorFlow would set.
    cluster.workers = [_QueueReader(group.number, group.devices[0], cluster) for group in groups]
    return coordinator
