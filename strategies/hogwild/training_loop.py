"""What Keras calls as `train_function` and `test_function` under `hogwild`.

A group gets the batches of a whole sync period with one call, or fewer in short epochs. The call returns the logs of each step,
and Keras' callbacks see all of them.
"""

import functools
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.executions import Execution, Executions
from tfdist.strategies.coordinator.group_function import runs_of_equal_shapes
from tfdist.strategies.coordinator.hooks import OpenEpochs
from tfdist.strategies.coordinator.metric_logs import MetricLogs
from tfdist.strategies.hogwild.group_calls import GroupCalls, can_be_split
from tfdist.strategies.hogwild.schedules import steps_per_call
from tfdist.strategies.hogwild.step_counters import steps_of
from tfdist.strategies.inputs.batches import as_tensors
from tfdist.strategies.inputs.input_feed import InputFeed
from tfdist.strategies.inputs.worker_input import WorkerBatch, WorkerInputIterator

_log = logging.getLogger("tfdist")

TURN_SECONDS = 10.0
"""If a step belongs to one group, the others leave it to that group for this long. After that any group may do it."""

PAUSE_SECONDS = 0.001
"""The pause before all groups are asked again for such a step. Its group may be busy with the step before."""


class TrainingLoop:
    """Keeps the worker groups busy with calls of several steps.

    Args:
        strategy: the strategy.
        model: the Keras model.
        calls: the calls of the groups, which return the results of all steps.
        metric_logs: the logs of the steps.
        trains: whether the steps train the model.
        open_epochs: the epochs of all loops of the strategy.
    """

    def __init__(
        self, strategy: Any, model: Any, calls: GroupCalls, metric_logs: MetricLogs, trains: bool, open_epochs: OpenEpochs
    ) -> None:
        self._strategy = strategy
        self._replicas = strategy.local_replicas
        self._executions: Executions = strategy.executions
        self._model = model
        self._calls = calls
        self._metric_logs = metric_logs
        self._trains = trains
        self._period = strategy.steps_per_synchronization
        self._ready: deque[Any] = deque()  # Logs that Keras has not asked for yet.
        self._steps_done = 0  # Since the last entry of `_ready`.
        self._next_step: int | None = None  # Its number over all groups; None before the first.
        self._any_group = False  # Whether any group may do the step of `_one_batch`.
        self._open_epochs = open_epochs
        self._epoch: Any = None  # The iterator of the epoch that is not over.
        self._error: Exception | None = None  # Of a step of this epoch, for Keras' next call.

    def __call__(self, iterator: Any) -> Any:
        """Returns the logs after the next `steps_per_execution` steps. Schedules batches of `iterator` and waits if it has to.

        Raises:
            StopIteration: if the epoch is over and all its executions are done.
        """
        if not isinstance(iterator, InputFeed | WorkerInputIterator):  # A generator of one batch.
            return self._one_batch(as_tensors(next(iterator)))
        self._open_epochs.enter(self)
        if iterator is not self._epoch:
            self._begin_epoch(iterator)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if not self._ready and not self._executions.pending(iterator):
            iterator.begin_epoch_if_over()
            if self._trains and not len(self._executions):
                self._replicas.train_alone(False)
        steps = steps_per_call(iterator.owner.batches_per_epoch, len(self._strategy.worker_groups), self._period)
        while not self._ready:
            while self._executions.pending(iterator) < self._executions.limit:
                batches = iterator.take(steps)
                if not batches:
                    break
                self._schedule(batches, iterator.owner.element_spec, iterator)
            execution = self._executions.wait_for_any(iterator)
            if execution is not None:
                self._add(execution)
            elif self._steps_done:  # The last `steps_per_execution` of an epoch may be fewer.
                self._steps_done = 0
                self._ready.append(self._metric_logs.logs)
            else:
                raise StopIteration
        return self._ready.popleft()

    def _begin_epoch(self, iterator: Any) -> None:
        if self._epoch is not None:  # It was interrupted. Its last steps count, but not in the logs of this epoch.
            self._executions.wait_until_idle()
            self._end_epoch()
            self._metric_logs.reset()
        self._epoch = iterator

    def _end_epoch(self) -> None:
        if self._error is not None:
            _log.warning("a step of the training before this one failed", exc_info=self._error)
        self._add_finished()
        self._ready.clear()
        self._steps_done = 0
        self._epoch, self._error = None, None

    def _add_finished(self) -> None:
        while (execution := self._executions.wait_for_any(self._epoch)) is not None:
            self._add(execution)

    def reset(self, error: Exception | None) -> None:
        """See `coordinator.hooks.TrainingLoop`."""
        self._next_step = None
        if self._epoch is None:
            self._metric_logs.reset()
            self._ready.clear()
            self._steps_done = 0
        else:
            self._error = self._error or error
            self._add_finished()
            self._metric_logs.carry()

    def finish(self) -> Any:
        """See `coordinator.hooks.TrainingLoop`."""
        self._add_finished()
        self._metric_logs.publish_sums()
        self._end_epoch()
        return self._metric_logs.logs

    def _one_batch(self, batch: Any) -> Any:
        """Does `train_on_batch` and `test_on_batch`. One group trains while the others wait, as one process would train."""
        self._executions.wait_until_idle()
        self.reset(None)
        if not self._trains:
            execution = self._schedule([batch])
            self._executions.result_of(execution)
            return self._add(execution, for_epoch=False)
        self._replicas.train_alone(True)
        latest = time.monotonic() + TURN_SECONDS
        for number in itertools.count(1):
            self._next_step = None
            self._any_group = self._replicas.has_lost_alone() or time.monotonic() > latest
            if self._any_group:
                self._replicas.synchronize_groups()  # Another group goes on from what the first one has done.
            execution = self._schedule([batch])
            if self._executions.result_of(execution):
                return self._add(execution, for_epoch=False)
            if number % len(self._strategy.worker_groups) == 0:
                time.sleep(PAUSE_SECONDS)

    # Scheduling.

    def _schedule(self, batches: list[Any], element_spec: Any = None, owner: Any = None) -> Execution:
        self._replicas.publish()
        if not self._trains:
            self._replicas.synchronize_groups()
        calls = self._prepare(batches, element_spec)
        self._metric_logs.begin_steps()

        def run(group: int) -> Any:
            # Empty if another group has to do it: several groups take an execution that belongs to one.
            if self._trains and not self._replicas.may_take(group, self._any_group):
                return []
            return [call(group) for call in calls]

        return self._executions.schedule(run, owner)

    def _prepare(self, batches: list[Any], element_spec: Any) -> list[Callable[[int], Any]]:
        """Returns the calls that a group makes one after the other."""
        if self._next_step is None:
            self._next_step = steps_of(self._model.optimizer) if self._trains else 0
        calls: list[Callable[[int], Any]] = []
        for run in [batches] if isinstance(batches[0], WorkerBatch) else runs_of_equal_shapes(batches):
            call: Callable[..., Any] = self._calls.prepare(run, element_spec)
            if self._trains and self._strategy.synchronization.adaptive and len(run) > 1 and can_be_split(run):
                # Traced here: tracing needs the group's thread, which makes variables on its worker.
                for piece in (run, run[:1]):
                    self._calls.prepare(piece, element_spec, period=1)
                call = functools.partial(self._run_adaptively, run, element_spec)
            calls.append(functools.partial(call, step=self._next_step))
            self._next_step += len(run)
        return calls

    def _run_adaptively(self, batches: list[Any], element_spec: Any, group: int, step: int) -> Any:
        """Makes the group synchronize after as many steps as suit its speed. Runs in the group's thread."""
        results = []
        while batches:
            period = self._strategy.speeds.period(group, self._period)
            piece, batches = batches[:period], batches[period:]
            call = self._calls.prepare(piece, element_spec, period=period)
            with self._strategy.speeds.measured(group, len(piece)):
                results.append(tf.nest.map_structure(tf.identity, call(group, step=step)))
            step += len(piece)
        return tf.concat(results, axis=0)

    # Results.

    def _add(self, execution: Execution, for_epoch: bool = True) -> Any:
        """Adds the results of an execution, and the logs of its steps to those of the epoch.

        Returns:
            The logs after its last step; None if it has made no step.
        """
        rows = [row for stacked in execution.result for row in stacked.numpy()]
        logs = None
        for row in rows:
            self._steps_done += for_epoch
            is_reported = for_epoch and self._steps_done >= self._model.steps_per_execution
            if is_reported or row is rows[-1]:  # A row holds the metrics of all steps of the group up to it.
                logs = self._metric_logs.add(execution.group, row)
            if is_reported:
                self._steps_done = 0
                self._ready.append(logs)
        self._replicas.count_updates(self._calls.counters.changes(rows))
        return logs
