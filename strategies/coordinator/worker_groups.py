"""Worker groups: the workers that step together, and TensorFlow's coordinator with one queue reader per group.

The groups are asynchronous of each other. Inside a group each worker is a replica of one function, that is, of one step on one
batch, whether the workers are devices of one task or tasks of their own.
"""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.strategies.private_api import CoordinatorWorker, use_own_executor
from tfdist.strategies.private_api.overrides import overrides


@dataclass(frozen=True)
class WorkerGroup:
    """One group.

    Attributes:
        number: its place among the groups, from 0.
        devices: the device of each of its replicas, in full.
        traced_devices: the devices that its functions are traced for: without the task where all are in one, so that groups
            that look alike inside share their functions.
        tasks: the indices of the worker tasks that it spans, its leader's first.
    """

    number: int
    devices: tuple[str, ...]
    traced_devices: tuple[str, ...]
    tasks: tuple[int, ...]


class _QueueReader(CoordinatorWorker):  # type: ignore[misc]
    """TensorFlow's thread of a group, which waits for nothing that other groups have not answered."""

    @overrides(CoordinatorWorker)
    def _process_queue(self) -> None:
        self._tfdist_executor = use_own_executor()
        super()._process_queue()


def groups_of(cluster: Cluster, devices: set[str]) -> list[WorkerGroup]:
    """The worker groups of `cluster`.

    Args:
        cluster: the prepared cluster.
        devices: the names of all devices in it, as `tf.config.list_logical_devices` gives them.
    """
    places = [(task, slot) for task in cluster.job("worker") for slot in range(task.slots)]
    groups = []
    for number, ranks in enumerate(cluster.worker_groups):
        full = []
        for rank in ranks:
            task, slot = places[rank]
            prefix = f"/job:worker/replica:0/task:{task.index}/device:"
            has_gpu = task.gpus and f"{prefix}GPU:{slot}" in devices
            full.append(f"{prefix}{'GPU' if has_gpu else 'CPU'}:{slot}")
        tasks = tuple(dict.fromkeys(places[rank][0].index for rank in ranks))
        traced = full if len(tasks) > 1 else [f"/{name.rpartition('/')[2]}" for name in full]
        groups.append(WorkerGroup(number, tuple(full), tuple(traced), tasks))
    return groups


def peers(cluster: Cluster) -> dict[int, set[int]]:
    """Worker task -> the worker tasks that it has to see, because a group spans both."""
    owners = [task.index for task in cluster.job("worker") for _ in range(task.slots)]
    seen: dict[int, set[int]] = {task.index: set() for task in cluster.job("worker")}
    for ranks in cluster.worker_groups:
        together = {owners[rank] for rank in ranks}
        for task in together:
            seen[task] |= together - {task}
    return seen


def coordinator_of(strategy: Any, groups: list[WorkerGroup]) -> "tf.distribute.coordinator.ClusterCoordinator":
    """TensorFlow's coordinator, whose "workers" are the groups: each function that is scheduled runs on one group's leader."""
    strategy._num_workers = 0  # The coordinator would start one queue reader for each worker task.
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    strategy._num_workers = len(groups)
    cluster = coordinator._cluster
    cluster._num_workers = len(groups)
    cluster._transient_timeouts_threshold = len(groups) // 10  # As it would have been.
    cluster.workers = [_QueueReader(group.number, group.devices[0], cluster) for group in groups]
    return coordinator
