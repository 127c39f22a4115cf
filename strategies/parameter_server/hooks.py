"""`ParameterServerHooks`: what Keras' loop asks of `parameter_server`."""

from collections.abc import Callable
from typing import Any

from tfdist.strategies.coordinator.calls.group_step import GroupStep, PredictionOutputs
from tfdist.strategies.coordinator.hooks import CoordinatorHooks
from tfdist.strategies.coordinator.metric_logs import MetricLogs
from tfdist.strategies.inputs.input_feed import FedDataset
from tfdist.strategies.keras_hooks import trainer
from tfdist.strategies.parameter_server import constraints
from tfdist.strategies.parameter_server.training_loop import StepFunction, Steps, fused_reads_of
from tfdist.strategies.parameter_server.turns import Turns


class ParameterServerHooks(CoordinatorHooks):
    """`KerasHooks` of `parameter_server`."""

    name = "parameter_server"
    no_xla = "XLA has no access to variables of another task"
    own_loop = (
        "a training loop of your own runs on the chief alone under parameter_server, and the workers idle; "
        "put the step into train_step and call fit, so that the workers make the steps, or schedule functions that call "
        "strategy.run with TensorFlow's ClusterCoordinator"
    )
    distributed = (
        "under parameter_server the chief reads the data and hands the batches out, and this is data that workers read; give "
        "it the tf.data.Dataset itself, or choose hogwild, where worker groups read their own."
    )

    def batch_source(self, dataset: Any) -> FedDataset:
        """See `KerasHooks`. The chief reads the data."""
        return FedDataset(dataset)

    def step_function(self, model: Any, step: Callable[..., Any]) -> Callable[[Any], Any]:
        """See `KerasHooks`."""
        trainer.check_optimizer(model, self._strategy)
        self._check_model(model)
        if step == model.train_step:
            constraints.warn_of_lost_updates(model, self._strategy.extended)
        metric_logs = MetricLogs(model)
        # `evaluate` and `predict` read exact weights: they judge what the ps hold and what files will hold.
        rounded = self._strategy.rounded and step == model.train_step
        reads = fused_reads_of(model, self._strategy.extended, rounded)
        group_step = GroupStep(self._strategy, model, step, metric_logs, reads)
        function = StepFunction(self._strategy, group_step)
        turns = Turns() if step == model.train_step and self._strategy.has_order else None
        check = self._shard_check(model, step)
        return self._training_loop(Steps(model, function, metric_logs, self._executions, turns), metric_logs, check)

    def predict_function(self, model: Any) -> Callable[[list[Any]], Any]:
        """See `KerasHooks`."""
        self._check_model(model)
        reads = fused_reads_of(model, self._strategy.extended)
        step = GroupStep(self._strategy, model, model.predict_step, PredictionOutputs(), reads)
        return self._prediction_loop(model, StepFunction(self._strategy, step).prepare)
