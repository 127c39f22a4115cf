"""The training loop of `parameter_server`: what Keras calls on the chief, and the steps that a worker group makes."""

import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.executions import Execution, Executions
from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.coordinator.group_function import GroupFunction, GroupProgram, runs_of_equal_shapes
from tfdist.strategies.coordinator.group_step import GroupStep, ReplicaBegin, StepScope
from tfdist.strategies.coordinator.hooks import OpenEpochs
from tfdist.strategies.coordinator.metric_logs import MetricLogs
from tfdist.strategies.inputs.batches import as_tensors
from tfdist.strategies.inputs.input_feed import InputFeed
from tfdist.strategies.keras_hooks.optimizer import with_inner
from tfdist.strategies.parameter_server import fused_reads
from tfdist.strategies.parameter_server.variables import ServerVariable

_log = logging.getLogger("tfdist")


class TrainingLoop:
    """Keeps the worker groups busy: each gets the next `steps_per_execution` batches as soon as it is free.

    Args:
        model: the Keras model.
        function: the function that makes steps and returns the vectors of `metric_logs`.
        metric_logs: the logs of the steps.
        executions: the executions of the strategy.
        open_epochs: the epochs of all loops of the strategy.
    """

    def __init__(
        self, model: Any, function: GroupFunction, metric_logs: MetricLogs, executions: Executions, open_epochs: OpenEpochs
    ) -> None:
        self._model = model
        self._function = function
        self._metric_logs = metric_logs
        self._executions = executions
        self._open_epochs = open_epochs
        self._epoch: Any = None  # The iterator of the epoch that is not over.
        self._ready: deque[Any] = deque()  # Logs that Keras has not asked for yet.
        self._error: Exception | None = None  # Of a step of this epoch, for Keras' next call.

    def __call__(self, iterator: Any) -> Any:
        """Schedules the next batches of `iterator`, waits for one execution and returns the logs over all that are done.

        Raises:
            StopIteration: if the epoch is over and all its executions are done.
        """
        if not isinstance(iterator, InputFeed):  # `train_on_batch` and `test_on_batch` pass a generator of one batch.
            return self._one_batch(as_tensors(next(iterator)))
        self._open_epochs.enter(self)
        if iterator is not self._epoch:
            self._begin_epoch(iterator)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._ready:
            return self._ready.popleft()
        if not self._executions.pending(iterator):
            iterator.begin_epoch_if_over()
        while self._executions.pending(iterator) < self._executions.limit:
            batches = iterator.take(self._model.steps_per_execution)
            if not batches:
                break
            self._schedule(batches, iterator.owner.element_spec, iterator)
        execution = self._executions.wait_for_any(iterator)
        if execution is None:
            raise StopIteration
        return self._add(execution)

    def _begin_epoch(self, iterator: Any) -> None:
        if self._epoch is not None:  # It was interrupted. Its last steps are done and do not count here.
            self._executions.wait_until_idle()
            self._end_epoch()
            self._metric_logs.reset()
        self._epoch = iterator

    def _end_epoch(self) -> None:
        if self._error is not None:
            _log.warning("a step of the training before this one failed", exc_info=self._error)
        while self._executions.wait_for_any(self._epoch) is not None:
            pass
        self._ready.clear()
        self._epoch, self._error = None, None

    def _one_batch(self, batch: Any) -> Any:
        self._executions.wait_until_idle()
        self.reset(None)
        execution = self._schedule([batch])
        self._executions.result_of(execution)
        return self._add(execution)

    def reset(self, error: Exception | None) -> None:
        """See `coordinator.hooks.TrainingLoop`."""
        if self._epoch is None:
            self._metric_logs.reset()
            return
        self._error = self._error or error
        while (execution := self._executions.wait_for_any(self._epoch)) is not None:
            self._ready.append(self._add(execution))
        self._metric_logs.carry()

    def finish(self) -> Any:
        """See `coordinator.hooks.TrainingLoop`."""
        while (execution := self._executions.wait_for_any(self._epoch)) is not None:
            self._add(execution)
        self._metric_logs.publish_sums()
        self._end_epoch()
        return self._metric_logs.logs

    def _schedule(self, batches: list[Any], element_spec: Any = None, owner: Any = None) -> Execution:
        calls = [self._function.prepare(run, element_spec) for run in runs_of_equal_shapes(batches)]
        self._metric_logs.begin_steps()
        return self._executions.schedule(lambda group: [call(group) for call in calls][-1], owner)

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
    for owner in with_inner(optimizer):
        candidates += [variable for variable in getattr(owner, "variables", []) if variable.shape.rank == 0]
    found = {id(v): v for v in (unwrapped(getattr(c, "_value", None)) for c in candidates)}
    return [variable for variable in found.values() if isinstance(variable, ServerVariable)]
