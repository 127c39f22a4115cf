"""The training loop of `parameter_server`: what Keras calls on the chief, and the steps that a worker group makes."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.executions import Execution, Executions
from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.coordinator.group_function import GroupFunction, GroupProgram, runs_of_equal_shapes
from tfdist.strategies.coordinator.group_step import GroupStep, ReplicaBegin, StepScope
from tfdist.strategies.coordinator.metric_logs import MetricLogs
from tfdist.strategies.inputs.batches import as_tensors
from tfdist.strategies.inputs.input_feed import InputFeed
from tfdist.strategies.parameter_server import fused_reads
from tfdist.strategies.parameter_server.variables import ServerVariable


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


class StepProgram(GroupProgram):
    """Makes one step, or one for each batch of a stack."""

    def __init__(self, step: GroupStep) -> None:
        self._step = step

    def run(self, variant: Any, devices: tuple[str, ...], data: Any, stacked: bool, *arguments: Any) -> Any:
        """See `GroupProgram`. Returns the result of the last step."""
        del variant, arguments
        outputs, shares = self._loop(devices, data) if stacked else self._step.run(devices, data)
        return self._step.result(devices, outputs, shares)

    def _loop(self, devices: tuple[str, ...], data: Any) -> tuple[list[Any], list[Any]]:
        count = tf.shape(tf.nest.flatten(data)[0])[0]
        width = len(devices)

        def body(number: tf.Tensor, before: Any, shares: Any) -> Any:
            del before, shares
            outputs, shares = self._step.run(devices, tf.nest.map_structure(lambda value: value[number], data))
            return number + 1, outputs, shares

        begin = (tf.constant(0), [tf.zeros([0], tf.float64)] * width, [tf.constant(0.0)] * width)
        shapes = (tf.TensorShape([]), [tf.TensorShape([None])] * width, [tf.TensorShape([])] * width)
        _, outputs, shares = tf.while_loop(lambda number, *_: number < count, body, begin, shapes, parallel_iterations=1)
        return outputs, shares


def fused_reads_of(model: Any) -> StepScope:
    """Returns a scope in which each replica reads the small variables of `model` with one message per ps."""

    @contextlib.contextmanager
    def scope() -> Iterator[ReplicaBegin]:
        with fused_reads.reading(_read_by_each_step(model)) as reads:
            yield reads.begin_replica

    return scope


def _read_by_each_step(model: Any) -> list[Any]:
    """Returns the ps' variables that every step reads: the model's, and the optimizer's scalars (learning rate, iterations)."""
    candidates = [*model.variables]
    optimizer = getattr(model, "optimizer", None)
    for owner in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        candidates += [variable for variable in getattr(owner, "variables", []) if variable.shape.rank == 0]
    found = {id(v): v for v in (unwrapped(getattr(c, "_value", None)) for c in candidates)}
    return [variable for variable in found.values() if isinstance(variable, ServerVariable)]
