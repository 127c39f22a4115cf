"""ParameterServer: TensorFlow's ParameterServerStrategy under which Keras 3's own `fit` works, with worker groups.

Variables live on the ps tasks. Each step is one function that a worker group runs: it reads the variables, computes gradients
and updates them. Groups do not wait for each other (Downpour); the workers of a group compute one step together (with one
group: Sandblaster). The chief reads the data, hands out the batches, and is the only one that sees callbacks, files and the
progress bar.
"""

import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.strategies.coordinator.executions import Executions
from tfdist.strategies.coordinator.group_function import GroupFunction
from tfdist.strategies.coordinator.training_loop import TrainingLoop
from tfdist.strategies.coordinator.worker_groups import WorkerGroup, coordinator_of, groups_of, peers
from tfdist.strategies.inputs.batches import as_tensors, concatenated
from tfdist.strategies.inputs.input_feed import Batch, FedDataset
from tfdist.strategies.keras_hooks import optimizer as keras_optimizer
from tfdist.strategies.keras_hooks import trainer
from tfdist.strategies.parameter_server import optimizer as server_optimizer
from tfdist.strategies.parameter_server.placement import ServerExtended
from tfdist.strategies.private_api import (
    ClusterDeviceFilters,
    connect_to_cluster,
    keep_remote_functions,
    set_server_def_retries,
    use_own_executor,
)
from tfdist.strategies.runtime import shutdown
from tfdist.strategies.runtime.memory import keep_freed_memory
from tfdist.strategies.runtime.peers import wait_for_tasks
from tfdist.strategies.runtime.program_end import at_program_end

CONNECTION_TRIES = 3
"""As in TensorFlow's ParameterServerStrategy: tries to reach a task that is just being started anew."""

_log = logging.getLogger("tfdist")


def create(cluster: Cluster, start_timeout: float) -> "ParameterServer":
    """Waits for the ps and worker tasks, connects to them as the chief, and returns the strategy.

    Raises:
        StartTimeoutError: naming the tasks that were not up within `start_timeout` seconds.
    """
    strategy: ParameterServer = begin(cluster, start_timeout, ParameterServer)
    return strategy


def begin(cluster: Cluster, start_timeout: float, kind: Any) -> Any:
    """Waits for the serving tasks, and connects to them with a strategy of this class."""
    keep_freed_memory()
    servers = [task for task in cluster.training_tasks if task.job in ("ps", "worker")]
    _log.debug("waiting for %d ps and worker tasks", len(servers))
    wait_for_tasks(servers, start_timeout, _log.warning)
    # Before the strategy exists: should connecting fail, the servers still learn that this chief is gone.
    at_program_end(lambda failed: _notify(servers, failed))
    strategy = kind(cluster)
    for hookup in (trainer, keras_optimizer, server_optimizer):
        hookup.install()
    return strategy


def _notify(servers: list[Task], failed: bool) -> None:
    shutdown.notify(servers, shutdown.FAILED if failed else shutdown.FINISHED)
    keep_remote_functions()


class ParameterServer(tf.distribute.ParameterServerStrategy):
    """`tf.distribute.ParameterServerStrategy` with its coordinator, worker groups, and step functions for Keras.

    Attributes:
        title: the name of the strategy.
        worker_groups: the groups, each a `WorkerGroup`.
    """

    title = "parameter_server"
    worker_groups: list[WorkerGroup]

    def __init__(self, cluster: Cluster) -> None:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster.cluster_spec()), task_type="chief", task_id=0, rpc_layer=cluster.protocol
        )
        # What ParameterServerStrategy.__init__ does, with our own `extended` and with workers that see those of their group.
        self._cluster_resolver = resolver
        self._verify_args_and_config(resolver)
        self._cluster_coordinator = None
        self._tfdist_connect(cluster, resolver)
        self._tfdist_executor = use_own_executor()
        devices = {device.name for device in tf.config.list_logical_devices()}
        self.worker_groups = groups_of(cluster, devices)
        tf.distribute.Strategy.__init__(self, self._tfdist_extended(resolver))
        self._should_use_with_coordinator = True
        self._canonicalize_devices = False
        self._is_parameter_server_strategy_v2 = True
        self.tfdist_hooks = self
        self._tfdist_step_functions: weakref.WeakSet[TrainingLoop] = weakref.WeakSet()
        self._tfdist_steps = Executions(coordinator_of(self, self.worker_groups), cluster.job("worker"))

    def _tfdist_extended(self, resolver: Any) -> Any:
        return ServerExtended(self, resolver, self.worker_groups)

    def _tfdist_keras_steps(self, model: Any, step: Callable[..., Any]) -> TrainingLoop:
        server_optimizer.begin_averages(model.optimizer)
        return TrainingLoop(self, model, step, self._tfdist_steps)

    def _tfdist_predict_step(self, model: Any) -> Callable[..., Any]:
        """What prepares a call that gives the outputs of a batch."""
        return GroupFunction(
            self, model, model.predict_step, lambda outputs: outputs, lambda: (), lambda outputs, *_: concatenated(outputs)
        ).prepare

    def _tfdist_seen_by_servers(self) -> list[str]:
        return ["/job:worker", "/job:chief"]

    def _tfdist_connect(self, cluster: Cluster, resolver: Any) -> None:
        self._num_workers, self._num_ps = len(cluster.job("worker")), len(cluster.job("ps"))
        # Each task sees only those that it exchanges tensors with: one that is down must not hold up the others.
        filters = ClusterDeviceFilters()
        for index, others in peers(cluster).items():
            group = [f"/job:worker/task:{other}" for other in sorted({index, *others})] if others else []
            filters.set_device_filters("worker", index, ["/job:ps", "/job:chief", *group])
        for task in cluster.job("ps"):
            filters.set_device_filters("ps", task.index, self._tfdist_seen_by_servers())
        # As in TensorFlow: one call to a worker at a time, so that its failure has one meaning, and synchronous executors.
        os.environ["TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE"] = "False"
        os.environ["TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY"] = "True"
        set_server_def_retries(CONNECTION_TRIES)
        connect_to_cluster(
            resolver.cluster_spec(), job_name="chief", protocol=resolver.rpc_layer, cluster_device_filters=filters
        )
        tf.config.list_logical_devices()  # Connects now.

    def check_data(self, data: Any) -> None:
        """See `KerasHooks`."""
        if isinstance(data, tf.distribute.DistributedDataset):
            raise ValueError(
                "under parameter_server the chief reads the data and hands the batches out, and this is data that workers "
                "read; give it the tf.data.Dataset itself, or choose hogwild, where worker groups read their own."
            )

    def batch_source(self, dataset: Any) -> FedDataset:
        """See `KerasHooks`: the chief reads the data."""
        return FedDataset(dataset)

    def example_batch(self, dataset: FedDataset) -> Any:
        """See `KerasHooks`."""
        return dataset.example()

    def step_function(self, model: Any, step: Callable[..., Any]) -> Callable[[Any], Any]:
        """See `KerasHooks`. Raises ValueError for an optimizer that was made outside the scope."""
        trainer.check_optimizer(model, self)
        steps = self._tfdist_keras_steps(model, step)
        self._tfdist_step_functions.add(steps)
        return steps

    def predict_function(self, model: Any) -> Callable[[list[Any]], Any]:
        """See `KerasHooks`."""
        prepare = self._tfdist_predict_step(model)
        steps = self._tfdist_steps

        def predict_one(batch: Any) -> Any:
            if not isinstance(batch, Batch):  # predict_on_batch
                return steps.result_of(steps.schedule(prepare([as_tensors(batch)])))
            # Keras wants the outputs one by one and in order; the groups compute the next ones meanwhile.
            for ahead in (batch, *batch.feed.peek(steps.limit)):
                if ahead.result is None:
                    ahead.result = steps.schedule(prepare([ahead.values], ahead.feed.owner.element_spec))
            return steps.result_of(batch.result)

        def predict(batches: list[Any]) -> Any:
            outputs = [predict_one(batch) for batch in batches]
            return concatenated(outputs)

        return predict

    def end_epoch(self, model: Any, logs: Any) -> Any:
        """See `KerasHooks`: what is a metric of the model is read from all workers.

        Keras does so where a step returns exactly its metrics. An own `train_step` may return others too, or nest them, and its
        last logs know only what one worker has counted.
        """
        for steps in self._tfdist_step_functions:
            if steps.logs is not None and steps in (model.train_function, model.test_function):
                logs = steps.finish()
                break
        else:
            self._tfdist_steps.finish()
        return trainer.with_metrics(logs, model.get_metrics_result()) if logs else logs

    def reset_metrics(self) -> None:
        """See `KerasHooks`."""
        self._tfdist_steps.settle()
        for steps in self._tfdist_step_functions:
            steps.begin()

    shows_progress = True

    def callbacks(self, callbacks: list[Any]) -> list[Any]:
        """See `KerasHooks`."""
        return callbacks
