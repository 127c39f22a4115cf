"""What Keras calls as `train_function` and `test_function` under `parameter_server`."""

from typing import Any

from tfdist.strategies.coordinator.batch_packing import runs_of_equal_shapes
from tfdist.strategies.coordinator.executions import Execution, Executions
from tfdist.strategies.coordinator.group_function import GroupFunction
from tfdist.strategies.coordinator.metric_logs import MetricLogs
from tfdist.strategies.inputs.batch_shards import as_tensors
from tfdist.strategies.inputs.input_feed import InputFeed


class TrainingLoop:
    """Keeps the worker groups busy: each gets the next `steps_per_execution` batches as soon as it is free.

    Args:
        model: the Keras model.
        function: the function that makes steps and returns the vectors of `metric_logs`.
        metric_logs: the logs of the steps.
        executions: the executions of the strategy.
    """

    def __init__(self, model: Any, function: GroupFunction, metric_logs: MetricLogs, executions: Executions) -> None:
        self._model = model
        self._function = function
        self._metric_logs = metric_logs
        self._executions = executions

    @property
    def logs(self) -> Any:
        """The logs of the last execution; None before the first."""
        return self._metric_logs.logs

    def __call__(self, iterator: Any) -> Any:
        """Schedules the next batches of `iterator`, waits for one execution and returns the logs over all that are done.

        Raises:
            StopIteration: if the epoch is over and all its executions are done.
        """
        if not isinstance(iterator, InputFeed):  # `train_on_batch` and `test_on_batch` pass a generator of one batch.
            self.begin()
            execution = self._schedule([as_tensors(next(iterator))])
            self._executions.result_of(execution)
            return self._add(execution)
        if not len(self._executions):
            iterator.begin_epoch_if_over()
        while len(self._executions) < self._executions.limit:
            batches = iterator.take(self._model.steps_per_execution)
            if not batches:
                break
            self._schedule(batches, iterator.owner.element_spec)
        done = self._executions.wait_for_any()
        if done is None:
            raise StopIteration
        return self._add(done)

    def begin(self) -> None:
        """Prepares for metrics that start from zero: waits for the executions in flight and discards their results."""
        self._executions.settle()
        self._metric_logs.reset()

    def finish(self) -> Any:
        """Waits for the executions in flight at the end of an epoch and returns its logs."""
        while (execution := self._executions.wait_for_any()) is not None:
            self._add(execution)
        self._metric_logs.publish_sums()
        return self.logs

    def _schedule(self, batches: list[Any], element_spec: Any = None) -> Execution:
        calls = [self._function.prepare(run, element_spec) for run in runs_of_equal_shapes(batches)]
        self._metric_logs.begin_steps()
        return self._executions.schedule(lambda group: [call(group) for call in calls][-1])

    def _add(self, execution: Execution) -> Any:
        return self._metric_logs.add(execution.group, execution.result.numpy())
