"""`Hogwild`: every worker group trains a local replica of the model, and synchronizes it with the global parameters.

The global parameters are on the ps tasks, or in a cluster without ps on the workers. After `sync_period` updates a group pushes
its weighted progress since its last push, and pulls the progress of the others. Groups wait for each other only in the rounds
of `nesterov` (rounds.py), for a limited time. With `average` this is SINGA's Distributed Hogwild, with an average in place of
its sum and without its lost updates.
`tfdist.Synchronization` documents the options.
"""

import logging
import weakref
from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.strategies.coordinator.members.server_recovery import ServerRecovery
from tfdist.strategies.coordinator.remote_garbage import RemoteGarbage
from tfdist.strategies.coordinator.strategy import CoordinatorStrategy, start
from tfdist.strategies.hogwild.extended import HogwildExtended
from tfdist.strategies.hogwild.hooks import HogwildHooks
from tfdist.strategies.hogwild.replicas import checkpoint_state, lost_shards, step_counters
from tfdist.strategies.hogwild.replicas.local_replicas import LocalReplicas
from tfdist.strategies.hogwild.synchronization import custom_gradients, loaded_functions
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.timing import network
from tfdist.strategies.hogwild.timing.measured_delay import MeasuredDelay
from tfdist.strategies.hogwild.timing.schedules import Speeds
from tfdist.strategies.hogwild.traffic import bytes_per_period, compression_used
from tfdist.strategies.inputs import worker_input
from tfdist.strategies.model_parallel.worker_mesh import WorkerMesh
from tfdist.strategies.runtime.notice import tell
from tfdist.strategies.runtime.task_address import device_of
from tfdist.synchronization import DEFAULT_SYNC_PERIOD

_log = logging.getLogger("tfdist")


def note_of_period(cluster: Cluster) -> str | None:
    """Returns a hint that the period is 1, unless a flag or TF_CONFIG gives it. It is the default of SINGA and `Cluster`."""
    if cluster.sync_period > 1 or "sync_period" in cluster.says:
        return None
    return f"hogwild: groups synchronize after every update; they wait less with a sync_period of {DEFAULT_SYNC_PERIOD}"


def create(cluster: Cluster, start_timeout: float) -> "Hogwild":
    """Waits for the ps and worker tasks, connects to them as the chief, and returns the strategy.

    Raises:
        StartTimeoutError: if tasks are not up after `start_timeout` seconds. The message names them.
    """
    strategy = start(cluster, start_timeout, Hogwild)
    network.choose_compression(strategy, cluster)
    step_counters.install()
    custom_gradients.install()
    loaded_functions.install()
    return strategy


class Hogwild(CoordinatorStrategy):
    """Worker groups with local replicas of the parameters, and the global parameters on the ps tasks.

    Attributes:
        synchronization: the options.
        steps_per_synchronization: updates of a group between two synchronizations of any part of the parameters, at first.
        server_devices: for each server group the devices of its ps tasks, which hold one copy of the global parameters.
        shares_replicas: whether the groups in one process train one replica without locks (Hogwild!, SINGA's `share_memory`).
        local_replicas: the local replicas of the groups.
        server_recovery: lets the training go on after the loss of a ps.
        remote_garbage: frees on the workers what the program has dropped.
        speeds: how fast the groups are.
        synchronized_blocks: the blocks of parameters that groups push and pull in the training that was begun last.
        delay: the delay of the groups, as it was given or measured, and their period; None before the first `fit`.
        compression_is_measured: whether `synchronization.compression` follows from the network, and not from the user.
    """

    tfdist_hooks: HogwildHooks
    delay: MeasuredDelay | None = None
    compression_is_measured = False
    synchronized_blocks: Collection[ParameterBlock] = ()

    def __init__(self, cluster: Cluster) -> None:
        self.synchronization = cluster.synchronization.resolved(len(cluster.worker_groups))
        self.steps_per_synchronization = max(1, cluster.sync_period // self.synchronization.fragments)
        if note := note_of_period(cluster):
            tell(note)
        device_of_rank = [device_of(task) for task in cluster.parameter_tasks for _ in range(task.slots)]
        groups = cluster.server_groups if self.synchronization.topology != "global" else (range(len(device_of_rank)),)
        self.server_devices = [list(dict.fromkeys(device_of_rank[rank] for rank in ranks)) for ranks in groups]
        # Several server groups synchronize with each other.
        others = ["/job:ps"] if len(self.server_devices) > 1 else []
        self.remote_garbage = RemoteGarbage()
        super().__init__(cluster, HogwildExtended, ["/job:worker", "/job:chief", *others], cluster.share_memory)
        if cluster.partition:
            rows = (row for group in self.worker_groups for row in group.rows)
            self.extended.worker_mesh = WorkerMesh(cluster.partition, rows)
        self.shares_replicas = len(set(self.membership.owners)) < len(self.worker_groups)
        self.server_recovery = ServerRecovery(
            cluster.parameter_tasks,
            restore=lambda lost: lost_shards.restore(self, lost),
            wait=lambda: self.recovery.wait_for_servers(self.server_watch.check),
        )
        self.recovery.servers = self.server_recovery
        self.local_replicas = LocalReplicas(self, self.membership)
        self.local_replicas.in_flight = self.executions.__len__
        self.local_replicas.wait_until_idle = self.executions.wait_until_idle
        self.executions.when_draining = lambda: self.local_replicas.drain()
        self.speeds = Speeds(len(self.worker_groups))
        self.executions.is_exact = False
        self.tfdist_hooks = HogwildHooks(self)
        self.local_replicas.count_steps = self.tfdist_hooks.count_steps

    def servers_of(self, group: int) -> int:
        """Returns the number of the server group with which a worker group synchronizes."""
        return group * len(self.server_devices) // len(self.worker_groups)

    def home_of(self, group: int) -> str:
        """Returns the device, as functions are traced for it, that holds the local replica of a group."""
        return self.worker_groups[self.membership.owners[group]].traced_devices[0]

    def exchange(self, steps_per_second: float | None) -> dict[str, Any]:
        """Returns what the launcher shows of the exchange between worker groups and ps.

        Args:
            steps_per_second: updates of all groups; None if not known.

        Returns:
            `period` and `delay` in updates, `compression` as it is used, and `bytes_per_second` of pushes and replies (None if
            not known). If `adaptive`, slower groups have a shorter period, and exchange more.
        """
        options = self.synchronization
        between = self.steps_per_synchronization if self.delay is None else self.delay.between
        period = between * options.fragments
        speed = None if steps_per_second is None else steps_per_second / period * bytes_per_period(self)
        return {
            "period": period,
            "delay": options.delay if self.delay is None else self.delay.updates,
            "compression": compression_used(self),
            "bytes_per_second": speed,
        }

    def distribute_datasets_from_function(self, dataset_fn: Any, options: Any = None) -> tf.data.Dataset:
        """Returns data that each worker group reads itself, for `fit` with `steps_per_epoch`.

        Args:
            dataset_fn: takes a `tf.distribute.InputContext`, whose `input_pipeline_id` is the number of the group, and returns
                the dataset of that group: batches of dense tensors, without end (`repeat()`).
            options: not used.
        """
        if absent := set(range(len(self.worker_groups))) - set(self.membership.live_groups):
            _log.warning(
                "worker groups %s do not train now: nobody reads their shards of the data until they join",
                ", ".join(map(str, sorted(absent))),
            )
        dataset = worker_input.dataset_of(dataset_fn, len(self.worker_groups))
        data = worker_input.of_dataset(dataset)
        if data is not None:
            # TensorFlow tells the workers that the functions are gone, and waits for their answers.
            device = self.worker_groups[0].devices[0]
            weakref.finalize(data, self.remote_garbage.free, device, data.makers.clear).atexit = False
        return dataset

    def training_state(self, model: Any) -> dict[str, Any]:
        """See `strategy_state.Stateful`. Waits for the executions in flight."""
        self.executions.wait_until_idle()
        self.local_replicas.count_steps()  # Else the counters would lack steps that the weights have.
        self.local_replicas.chief.publish()  # Else the progress of the groups would replace what a callback has assigned.
        return checkpoint_state.state_of(self.local_replicas, model)

    def set_training_state(self, model: Any, state: dict[str, Any]) -> None:
        """See `strategy_state.Stateful`. Waits for the executions in flight."""
        self.executions.wait_until_idle()
        self.local_replicas.chief.publish()  # Else the progress that the state replaces would come into the outer momentum.
        checkpoint_state.restore(self.local_replicas, model, state)
