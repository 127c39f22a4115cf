"""`HogwildHooks`: what Keras' loop asks of `hogwild`."""

from collections.abc import Callable
from typing import Any

from tfdist.strategies.coordinator.calls.group_step import GroupStep, PredictionOutputs
from tfdist.strategies.coordinator.hooks import CoordinatorHooks
from tfdist.strategies.coordinator.metric_logs import MetricLogs
from tfdist.strategies.hogwild.group_calls import GroupCalls
from tfdist.strategies.hogwild.replicas.refused_weights import check_are_real, check_not_own
from tfdist.strategies.hogwild.training_loop import Steps
from tfdist.strategies.inputs import worker_input
from tfdist.strategies.inputs.input_feed import FedDataset
from tfdist.strategies.keras_hooks import trainer

_SCHEDULED = (
    "a function that ClusterCoordinator schedules cannot train under hogwild, where every worker group has a model of its own; "
    "put the step into train_step and call fit, or choose parameter_server"
)


class HogwildHooks(CoordinatorHooks):
    """`KerasHooks` of `hogwild`."""

    name = "hogwild"
    no_xla = "XLA cannot compile a step that finds its variables by their names"
    own_loop = (
        "a training loop of your own runs on the chief alone under hogwild, and the workers idle; "
        "put the step into train_step and call fit, so that the workers make the steps"
    )
    distributed = (
        "under hogwild the chief reads the data and hands the batches out, or worker groups read their own, and TensorFlow has "
        "distributed this dataset; give it the tf.data.Dataset itself, or what strategy.distribute_datasets_from_function "
        "returns."
    )

    def check_own_loop(self) -> None:
        """See `CoordinatorHooks`. Raises ValueError, too, for a function that `ClusterCoordinator` schedules.

        It would change the values of the chief and no local replica.
        """
        super().check_own_loop()
        if self._strategy.extended._being_scheduled:
            self._strategy.extended._being_scheduled = False  # TensorFlow leaves it where a function cannot be scheduled.
            raise ValueError(_SCHEDULED)

    def batch_source(self, dataset: Any) -> Any:
        """See `KerasHooks`. The chief reads the data, unless worker groups read their own."""
        data = worker_input.of_dataset(dataset)
        return FedDataset(dataset) if data is None else data.for_call()

    def step_function(self, model: Any, step: Callable[..., Any]) -> Callable[[Any], Any]:
        """See `KerasHooks`."""
        trainer.check_optimizer(model, self._strategy)
        self._check_model(model)
        trains = step == model.train_step  # A decorator may give it another name.
        if trains:
            check_not_own(model)
            check_are_real(model, len(self._strategy.worker_groups))
        metric_logs = MetricLogs(model)
        group_step = GroupStep(self._strategy, model, step, metric_logs)
        calls = GroupCalls(self._strategy, model, group_step, trains=trains, stacks_results=True)
        check = self._shard_check(model, step)
        return self._training_loop(Steps(self._strategy, model, calls, metric_logs, trains), metric_logs, check)

    def predict_function(self, model: Any) -> Callable[[list[Any]], Any]:
        """See `KerasHooks`."""
        self._check_model(model)
        replicas = self._strategy.local_replicas
        calls = GroupCalls(self._strategy, model, GroupStep(self._strategy, model, model.predict_step, PredictionOutputs()))

        def prepare(batches: list[Any], element_spec: Any) -> Callable[[int], Any]:
            replicas.chief.publish()
            replicas.chief.synchronize_groups()
            calls.counters.begin(0)
            call = calls.prepare(batches, element_spec)
            return lambda group: call(group, 0)

        return self._prediction_loop(model, prepare)
