"""Hogwild: every worker group trains its own copy of the model and exchanges its progress with the centre now and then.

The centre lies in slices on the ps tasks. After `sync_period` updates a group pushes what it has changed since its last
exchange, weighted, and takes over what the others have pushed; nobody waits for anybody. SINGA's Distributed Hogwild, with
the average in place of its sum and without its lost updates. See `tfdist.Synchronization` for the options.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.strategies.coordinator.executions import IN_FLIGHT_PER_GROUP
from tfdist.strategies.coordinator.extended import GroupExtended
from tfdist.strategies.coordinator.sync_on_read_variable import SyncOnReadVariable
from tfdist.strategies.coordinator.training_loop import TrainingLoop
from tfdist.strategies.hogwild import checkpoint_state, step_counters
from tfdist.strategies.hogwild.local_replicas import LocalReplicas
from tfdist.strategies.hogwild.local_variable import LocalVariable
from tfdist.strategies.hogwild.schedules import Speeds
from tfdist.strategies.hogwild.training_loop import InnerSteps, InnerTrainingLoop
from tfdist.strategies.inputs import worker_input
from tfdist.strategies.inputs.batch_shards import concatenated
from tfdist.strategies.parameter_server.strategy import ParameterServer, begin
from tfdist.strategies.parameter_server.variables import unwrapped


def create(cluster: Cluster, start_timeout: float) -> "Hogwild":
    """Waits for the ps and worker tasks, connects to them as the chief, and returns the strategy.

    Raises:
        StartTimeoutError: naming the tasks that were not up within `start_timeout` seconds.
    """
    strategy: Hogwild = begin(cluster, start_timeout, Hogwild)
    step_counters.install()
    return strategy


class Hogwild(ParameterServer):
    """Worker groups with copies of their own, and the centre on the ps tasks.

    Attributes:
        synchronization: the options.
        steps_per_exchange: updates between two exchanges of any part of the parameters.
        shares_copies: whether the groups of one process train one copy, without locks (Hogwild!, SINGA's `share_memory`).
        server_devices: the devices of the ps that hold one copy of the centre, for each of its copies.
        copies: what the groups have.
        speeds: how fast the groups are.
    """

    title = "hogwild"

    def __init__(self, cluster: Cluster) -> None:
        self.synchronization = cluster.synchronization
        self.steps_per_exchange = max(1, cluster.sync_period // self.synchronization.fragments)
        servers = [task.index for task in cluster.job("ps") for _ in range(task.slots)]
        groups = cluster.server_groups if self.synchronization.topology != "global" else (tuple(range(len(servers))),)
        self.server_devices = [
            list(dict.fromkeys(f"/job:ps/replica:0/task:{servers[rank]}/device:CPU:0" for rank in ranks)) for ranks in groups
        ]
        super().__init__(cluster)
        tasks = [group.tasks for group in self.worker_groups]
        self.shares_replicas = cluster.share_memory and len(set(tasks)) < len(tasks)
        self.local_replicas = LocalReplicas(self, self._cluster_coordinator)
        self.speeds = Speeds(len(self.worker_groups))
        self.local_replicas.in_flight = self._tfdist_steps.__len__
        self._tfdist_steps.give_up = self.local_replicas.mark_lost
        self._tfdist_steps.limit = IN_FLIGHT_PER_GROUP * len(self.worker_groups)

    def _tfdist_seen_by_servers(self) -> list[str]:
        # In a ring, and in pairs, server groups exchange with each other.
        return super()._tfdist_seen_by_servers() + (["/job:ps"] if len(self.server_devices) > 1 else [])

    def _tfdist_extended(self, resolver: Any) -> "HogwildExtended":
        return HogwildExtended(self, resolver, self.worker_groups)

    def servers_of(self, group: int) -> int:
        """The copy of the centre with which a group exchanges."""
        return group * len(self.server_devices) // len(self.worker_groups)

    def home_of(self, group: int) -> str:
        """The device, as functions are traced for it, that has the copies which the group trains."""
        return self.worker_groups[self.local_replicas.owners[group]].traced_devices[0]

    def distribute_datasets_from_function(self, dataset_fn: Any, options: Any = None) -> tf.data.Dataset:
        """As TensorFlow's: data that each worker group reads itself, for `fit` with `steps_per_epoch`.

        Args:
            dataset_fn: takes a `tf.distribute.InputContext` (`input_pipeline_id` is the number of the group) and returns the
                dataset of that group, with batches of dense tensors, without end (`repeat()`).
            options: not used.
        """
        del options
        return worker_input.dataset_of(dataset_fn, len(self.worker_groups))

    def batch_source(self, dataset: Any) -> Any:
        """See `KerasHooks`."""
        return worker_input.of_dataset(dataset) or super().batch_source(dataset)

    def training_state(self, model: Any) -> dict[str, Any]:
        """See `state_in_files.Stateful`. Waits for the steps under way."""
        self._tfdist_steps.wait_for_all()
        return checkpoint_state.state_of(self.local_replicas, model)

    def set_training_state(self, model: Any, state: dict[str, Any]) -> None:
        """See `state_in_files.Stateful`."""
        checkpoint_state.restore(self.local_replicas, model, state)

    def _tfdist_keras_steps(self, model: Any, step: Any) -> TrainingLoop:
        trains = getattr(step, "__name__", "") == "train_step"
        return InnerTrainingLoop(self, model, step, self._tfdist_steps, trains)

    def _tfdist_predict_step(self, model: Any) -> Any:
        step = InnerSteps(
            self, model, model.predict_step, lambda outputs: outputs, lambda: (), lambda outputs, *_: concatenated(outputs)
        )

        def prepare(batches: list[Any], element_spec: Any = None) -> Any:
            self.local_replicas.publish()
            self.local_replicas.synchronize_groups()
            call = step.prepare(batches, element_spec)
            return lambda group: call(group, 0)

        return prepare


class HogwildExtended(GroupExtended):
    """Variables with a copy in every worker group."""

    _tfdist_home: str | None = None

    @contextlib.contextmanager
    def home(self, device: str) -> Iterator[None]:
        """Around the tracing of a function for a group whose copies are on `device`."""
        outer, self._tfdist_home = self._tfdist_home, device
        try:
            yield
        finally:
            self._tfdist_home = outer

    @property
    def is_tracing(self) -> bool:
        """Whether a function that a group runs is being traced."""
        return self._tfdist_tracing is not None

    @property
    def replica_device(self) -> str:
        """The device of the copies in the function that is being traced."""
        assert self._tfdist_tracing is not None
        return self._tfdist_home or self._tfdist_tracing[0]

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
            return SyncOnReadVariable(self._container_strategy(), next_creator, **kwargs)
        kwargs.pop("colocate_with", None)
        with tf.compat.v1.colocate_with(None, ignore_existing=True):
            variable = LocalVariable(self._container_strategy(), next_creator, **kwargs)
        return self._shared(variable, kwargs.get("aggregation"))

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not isinstance(unwrapped(colocate_with_variable), LocalVariable):
            super()._validate_colocate_with_variable(colocate_with_variable)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        variable = unwrapped(var)
        if not isinstance(variable, LocalVariable):
            return super()._update(var, fn, args, kwargs, group)
        args, kwargs = self._select_single_value(args), self._select_single_value(kwargs)
        result = self._update_on(self.replica_device if self.is_tracing else variable.device, variable, fn, args, kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)
