"""The steps of `hogwild`, as the chief schedules them.

A group gets the batches of a whole sync period with one call, fewer in short epochs, or those of several periods if no callback
reads the logs of single steps. The call returns the logs of each step, and Keras' callbacks see all of them.
"""

import functools
import itertools
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.coordinator.calls import call_size
from tfdist.strategies.coordinator.calls.execution import Execution
from tfdist.strategies.coordinator.calls.executions import Executions
from tfdist.strategies.coordinator.calls.group_function import runs_of_equal_shapes
from tfdist.strategies.coordinator.hooks import INTERRUPTED_SECONDS
from tfdist.strategies.coordinator.members.membership import Membership
from tfdist.strategies.coordinator.metric_logs import MetricLogs
from tfdist.strategies.hogwild.group_calls import GroupCalls, can_be_split
from tfdist.strategies.hogwild.replicas.step_counters import counter_of, steps_of
from tfdist.strategies.hogwild.timing.measured_delay import COLUMNS, updates_alone
from tfdist.strategies.hogwild.timing.schedules import most_periods, period_in_epoch, periods_per_call, steps_per_call
from tfdist.strategies.inputs.worker_input import WorkerBatch
from tfdist.strategies.keras_hooks.interface import Logs, Readers
from tfdist.strategies.runtime import interrupts

TURN_SECONDS = 10.0
"""If a step belongs to one group, the others leave it to that group for this long. After that any group may do it."""


class Steps:
    """The steps of a training loop, several with each call of a worker group.

    Implements `coordinator.training_loop.Steps`.

    Args:
        strategy: the strategy.
        model: the Keras model.
        calls: the calls of the groups, which return the results of all steps.
        metric_logs: the logs of the steps.
        trains: whether the steps train the model.
    """

    def __init__(self, strategy: Any, model: Any, calls: GroupCalls, metric_logs: MetricLogs, trains: bool) -> None:
        self._strategy = strategy
        self._replicas = strategy.local_replicas
        self._membership: Membership = strategy.membership
        self._executions: Executions = strategy.executions
        self._model = model
        self._calls = calls
        self._metric_logs = metric_logs
        self._trains = trains
        self._batch_bytes = 0  # Of the last batch.
        self._is_packed = False  # Whether it travels as bytes.
        self._step_seconds = math.inf  # Of a step of a group, in the last call.
        self._group_seconds = 0.0  # Of all calls.
        self._steps_done = 0  # Since the last logs that Keras gets.
        self._next_step: int | None = None  # Its number over all groups; None before the first.
        self._any_group = False  # Whether any group may do the step of `one_batch`.
        self._kept_steps = 0  # Of a group that keeps its progress, since the chief has collected it.
        # Counters, by id, with the updates of each step whose logs Keras has not read.
        self._unread: dict[int, tuple[Any, deque[int]]] = {}

    def schedule(self, iterator: Any, readers: Readers) -> bool:
        """See `coordinator.training_loop.Steps`."""
        in_epoch, groups = iterator.owner.batches_per_epoch, max(1, len(self._membership.live_groups))
        if in_epoch is not None and in_epoch <= iterator.taken:
            in_epoch = None  # The last epoch was shorter.
        period = period_in_epoch(in_epoch, groups, self._period)
        steps = steps_per_call(in_epoch, groups, period, iterator.taken)
        if self._calls.takes_several_periods():
            left = in_epoch and in_epoch - iterator.taken
            every = self._model.steps_per_execution
            most = most_periods(readers, period, every, self._step_seconds, self._group_seconds / groups)
            steps *= periods_per_call(left, groups, period, self._batch_bytes if self._is_packed else None, most)
        steps = call_size.batches_per_call(steps, self._batch_bytes)
        batches = iterator.take(steps)
        if batches:
            later = None
            if in_epoch is not None:
                calls, rest = divmod(max(0, in_epoch - iterator.taken), steps)
                later = calls + (rest > 0)
            self._schedule(batches, iterator.owner.element_spec, iterator, later=later, period=period)
        else:
            self._executions.drain()
        return bool(batches)

    def rest(self) -> list[Logs]:
        """See `coordinator.training_loop.Steps`."""
        done, self._steps_done = self._steps_done, 0
        return [self._metric_logs.logs] if done else []

    def begin(self) -> None:
        """See `coordinator.training_loop.Steps`. All groups train, unless other steps are in flight."""
        if self._trains and not len(self._executions):
            self._replicas.train_alone(False)
            self._replicas.pushes_left.begin_epoch()
            self._calls.begin_epoch()

    def reset(self) -> None:
        """See `coordinator.training_loop.Steps`. The steps go on from the chief's count."""
        self._add_own()
        self._next_step = None

    def one_batch(self, batch: Any) -> Logs:
        """See `coordinator.training_loop.Steps`. One group trains while the others wait, as one process would train."""
        if not self._trains:
            execution = self._schedule([batch])
            self._executions.result_of(execution)
            return self._add_one(execution)
        self._replicas.train_alone(True)
        latest = time.monotonic() + TURN_SECONDS
        while True:
            self._next_step = None
            remaining = latest - time.monotonic()
            self._any_group = self._membership.has_lost_alone() or remaining <= 0
            if self._any_group:
                self._replicas.chief.synchronize_groups()  # Another group goes on from what the first one has done.
            execution = self._schedule([batch], owner=self, group=None if self._any_group else self._membership.alone)
            try:
                self._executions.result_of(execution, None if self._any_group else remaining)
            except KeyboardInterrupt:
                if self._executions.wait_for(self, INTERRUPTED_SECONDS):  # Else `reset` adds it.
                    self._add_own()
                raise
            if (logs := self._add_own()) is not None:
                self._collect_kept()
                return logs

    def _add_own(self) -> Logs | None:
        """Adds the step of `one_batch`, if one has been made and not been added. Returns its logs."""
        with interrupts.held():
            execution = self._executions.wait_for_any(self)
            return self._add_one(execution) if execution is not None and execution.result else None

    def _collect_kept(self) -> None:
        """Collects, once in a period, what a group keeps that trains alone: all of it would be lost with its worker."""
        self._kept_steps = self._kept_steps + 1 if self._replicas.keeps_progress else 0
        if self._kept_steps >= self._period:
            self._kept_steps = 0
            self._replicas.chief.synchronize_groups()

    # Scheduling.

    @property
    def _period(self) -> int:
        return self._calls.delay.between

    def _schedule(
        self,
        batches: list[Any],
        element_spec: Any = None,
        owner: Any = None,
        group: int | None = None,
        later: int | None = None,
        period: int | None = None,
    ) -> Execution:
        self._replicas.begin_calls(self._trains)
        self._replicas.chief.publish()
        if not self._trains:
            self._replicas.chief.synchronize_groups()
        calls = self._prepare(batches, element_spec, period or self._period)
        if self._trains:
            self._replicas.pushes_left.schedule(len(calls), later)
        self._metric_logs.begin_steps()

        def run(group: int) -> Any:
            # Empty if another group has to do it, because the one that trains alone has failed.
            if self._trains and not self._membership.may_take(group, self._any_group):
                return []
            return [call(group) for call in calls]

        return self._executions.schedule(run, owner, group)

    def _prepare(self, batches: list[Any], element_spec: Any, period: int) -> list[Callable[[int], Any]]:
        """Returns the calls that a group makes one after the other."""
        if self._next_step is None:
            self._next_step = steps_of(self._model.optimizer) if self._trains else 0
            self._calls.counters.begin(self._next_step)
        elif self._trains:
            self._next_step += self._calls.counters.follow_assignments(counter_of(self._model.optimizer))
        calls: list[Callable[[int], Any]] = []
        runs: list[list[Any]] = [batches] if isinstance(batches[0], WorkerBatch) else runs_of_equal_shapes(batches)
        self._batch_bytes, self._is_packed = _bytes_of(runs[0][0]), can_be_split(runs[0])
        for run in itertools.chain.from_iterable(self._parts(run, period) for run in runs):
            call: Callable[..., Any] = self._calls.prepare(run, element_spec, period)
            if self._trains and self._strategy.synchronization.adaptive and len(run) > 1 and can_be_split(run):
                # Traced here: tracing needs the group's thread, which makes variables on its worker.
                self._calls.trace_pieces(run, element_spec)
                call = functools.partial(self._run_adaptively, run, element_spec)
            calls.append(functools.partial(call, step=self._next_step))
            self._next_step += len(run)
        return calls

    def _parts(self, run: list[Any], period: int) -> list[list[Any]]:
        """Splits batches of equal shapes into those of calls: whole periods and the rest, fewer if they are large."""
        whole = len(run) // period * period
        parts: list[list[Any]] = []
        for part in filter(None, (run[:whole], run[whole:])):
            parts += [part] if isinstance(part[0], WorkerBatch) else call_size.calls_of(part)
        return parts

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

    def add(self, execution: Execution) -> list[Logs]:
        """See `coordinator.training_loop.Steps`."""
        rows = self._noted(execution, _rows_of(execution))
        every = self._model.steps_per_execution
        complete = range(every - 1 - self._steps_done, len(rows), every)
        self._steps_done = (self._steps_done + len(rows)) % every
        return self._add(execution, rows, complete)

    def _add(self, execution: Execution, rows: Any, wanted: Sequence[int]) -> list[Logs]:
        """Adds the results of an execution: one row per step. Returns the logs after each step in `wanted`."""
        last = len(rows) - 1
        logs = self._metric_logs.add(execution, rows[[*wanted] if wanted and wanted[-1] == last else [*wanted, last]])
        self._replicas.chief.note_execution()
        for counter, updates in self._calls.counters.changes(rows):
            self._unread.setdefault(id(counter), (counter, deque()))[1].extend(updates)
        return logs[: len(wanted)]

    def _add_one(self, execution: Execution) -> Logs:
        (logs,) = self._add(execution, self._noted(execution, _rows_of(execution)), [0])
        self.count_read(are_all=True)
        return logs

    def count_read(self, are_all: bool = False) -> None:
        """See `coordinator.training_loop.Steps`. Groups are ahead of callbacks, which act by the count of updates."""
        with interrupts.held():
            for counter, updates in self._unread.values():
                steps = len(updates) if are_all else min(self._model.steps_per_execution, len(updates))
                counter.count_on_chief(sum(updates.popleft() for _ in range(steps)))

    def _noted(self, execution: Execution, rows: Any) -> Any:
        """Notes the measured times, and returns the rows without them."""
        if not self._calls.measures:
            return rows
        delay, measured = self._calls.delay, rows[:, -COLUMNS:]
        alone = updates_alone(measured)
        self._step_seconds = step = execution.seconds / len(rows)
        self._group_seconds += execution.seconds
        update = statistics.median(alone) if alone else step
        period = delay.between * self._strategy.synchronization.fragments
        self._replicas.grace.note(self._calls, execution.group, step * period, update * period)
        delay.note(execution.group, measured)
        return rows[:, :-COLUMNS]


def _bytes_of(batch: Any) -> int:
    """Returns how many bytes the chief sends for a batch: none if a group reads it itself."""
    return 0 if isinstance(batch, WorkerBatch) else call_size.bytes_of(batch)


def _rows_of(execution: Execution) -> Any:
    """Returns what each step of an execution returned, numpy float64 [steps, n]."""
    results = [stacked.numpy() for stacked in execution.result]
    return results[0] if len(results) == 1 else np.concatenate(results)
