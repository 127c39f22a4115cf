"""What Keras calls on the chief as `train_function` and `test_function`: it keeps the worker groups busy with steps.

`Steps` is what differs between `parameter_server` and `hogwild`: how steps are scheduled, and how their results are read.
"""

import contextlib
import gc
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tfdist.strategies.coordinator.calls.execution import Execution
from tfdist.strategies.coordinator.calls.executions import Executions
from tfdist.strategies.coordinator.calls.group_function import examples_in
from tfdist.strategies.coordinator.metric_logs import MetricLogs
from tfdist.strategies.inputs.batches import as_tensors
from tfdist.strategies.inputs.source import BatchIterator, EmptyDatasetError
from tfdist.strategies.keras_hooks import calls
from tfdist.strategies.keras_hooks.checks.shard_check import ShardCheck
from tfdist.strategies.keras_hooks.interface import Logs, Readers
from tfdist.strategies.runtime import interrupts
from tfdist.strategies.runtime.deadline import Deadline

_log = logging.getLogger("tfdist")


class Steps(Protocol):
    """The steps of a training loop, as its strategy makes them."""

    def schedule(self, iterator: BatchIterator, readers: Readers) -> bool:
        """Schedules steps on the next batches of an epoch.

        Args:
            iterator: the iterator of the epoch, which owns the execution.
            readers: who reads the logs of each step.

        Returns:
            Whether there was a batch.
        """

    def add(self, execution: Execution) -> list[Logs]:
        """Adds the results of an execution. Returns the logs after each `steps_per_execution` steps that are complete now."""

    def rest(self) -> list[Logs]:
        """Returns the logs after the last steps of an epoch, if they are fewer than `steps_per_execution`."""

    def one_batch(self, batch: Any) -> Logs:
        """Does `train_on_batch` or `test_on_batch`. Nothing is in flight."""

    def count_read(self, are_all: bool = False) -> None:
        """Adds the updates of the steps whose logs Keras reads now, or of all steps that are added, to the chief's counters."""

    def begin(self) -> None:
        """Prepares for the first steps of an epoch."""

    def reset(self) -> None:
        """Prepares for steps of which others may have come before. Nothing is in flight."""


@dataclass
class _Epoch:
    """An epoch that is not over.

    Attributes:
        loop: its training loop.
        iterator: the iterator of its batches.
        call: the call of Keras' trainer in which it began; None if there was none.
        ready: logs that Keras has not asked for yet.
        error: of one of its steps, for Keras' next call.
    """

    loop: "TrainingLoop"
    iterator: BatchIterator
    call: calls.Call | None = field(default_factory=calls.running)
    ready: deque[Logs] = field(default_factory=deque)
    error: Exception | None = None

    def is_around(self) -> bool:
        """Returns whether another call of Keras' trainer runs within the one of the epoch."""
        return self.call is not None and self.call is not calls.running() and not calls.is_over(self.call)

    def is_in_its_call(self) -> bool:
        """Returns whether the program is in the call of the epoch, and in no other within it."""
        return self.call is not None and self.call is calls.running()


class OpenEpochs:
    """The epochs of a strategy that are not over, the innermost last: a callback of `fit` may call `evaluate`."""

    def __init__(self) -> None:
        self._epochs: list[_Epoch] = []
        self._were_left = False

    def of(self, loop: "TrainingLoop") -> _Epoch | None:
        """Returns the innermost epoch of a loop; None if none is open."""
        return next((epoch for epoch in reversed(self._epochs) if epoch.loop is loop), None)

    def with_iterator(self, loop: "TrainingLoop", iterator: BatchIterator) -> _Epoch | None:
        """Returns the epoch of a loop with this iterator; None if it has not begun."""
        return next((epoch for epoch in self._epochs if epoch.loop is loop and epoch.iterator is iterator), None)

    def innermost_of(self, model: Any) -> "TrainingLoop | None":
        """Returns the loop of `model` with the innermost epoch; None if it is over or has made no step."""
        loops = (model.train_function, model.test_function)
        return next((epoch.loop for epoch in reversed(self._epochs) if epoch.loop in loops), None)

    def innermost(self) -> "TrainingLoop | None":
        """Returns the loop of the innermost epoch; None if none is open."""
        return self._epochs[-1].loop if self._epochs else None

    def have_unread(self) -> bool:
        """Returns whether the program is in the call of an epoch that has made steps whose logs Keras has not read."""
        return any(epoch.ready and epoch.is_in_its_call() for epoch in self._epochs)

    def begin(self, epoch: _Epoch) -> None:
        """Adds the innermost epoch."""
        self._epochs.append(epoch)

    def within(self, epoch: _Epoch) -> list[_Epoch]:
        """Returns the epochs that began within `epoch`, the innermost first."""
        return self._epochs[: self._epochs.index(epoch) : -1]

    def end(self, epoch: _Epoch) -> None:
        """Removes an epoch."""
        self._epochs.remove(epoch)

    def end_interrupted(self) -> bool:
        """Ends the epochs whose call of Keras' trainer is over: an exception has left it.

        Returns:
            Whether there were any, or `leave_interrupted` has ended some since the last time.
        """
        were_left, self._were_left = self._were_left, False
        interrupted = self._interrupted()
        for epoch in interrupted:
            epoch.loop.end(epoch)
        return were_left or bool(interrupted)

    def leave_interrupted(self, seconds: float) -> None:
        """Ends the same epochs when an exception has just left their call, unless their steps take longer than that."""
        latest = Deadline.after(seconds)
        for epoch in self._interrupted():
            if epoch.loop.finishes_within(epoch, latest.remaining()):
                epoch.loop.end(epoch)
                self._were_left = True

    def end_interrupted_of(self, loop: "TrainingLoop", error: Exception | None) -> bool:
        """Ends the same epochs of one loop; returns whether there were any. Nothing is in flight.

        Args:
            loop: the loop.
            error: what a step raised while the strategy waited for it.
        """
        interrupted = [each for each in self._interrupted() if each.loop is loop]
        for epoch in interrupted:
            epoch.error = epoch.error or error
            loop.end(epoch)
        self._were_left |= bool(interrupted)
        return bool(interrupted)

    def add_finished(self) -> None:
        """Adds the steps that are scheduled to their epochs, once they are done."""
        for epoch in reversed(self._epochs):
            epoch.loop.add_steps_of(epoch)

    def _interrupted(self) -> list[_Epoch]:
        return [each for each in reversed(self._epochs) if each.call is not None and calls.is_over(each.call)]


class TrainingLoop:
    """Keeps the worker groups busy with the batches of an epoch, and hands the logs of their steps to Keras.

    Args:
        steps: the steps.
        metric_logs: the logs of the steps.
        executions: the executions of the strategy.
        open_epochs: the epochs of all loops of the strategy.
        check: looks at the first batch of a `train_step`, if replicas share it.

    Attributes:
        readers: who may read the logs of each step while an epoch runs.
        metric_logs: the logs of the steps.
    """

    def __init__(
        self,
        steps: Steps,
        metric_logs: MetricLogs,
        executions: Executions,
        open_epochs: OpenEpochs,
        check: ShardCheck | None = None,
    ) -> None:
        self._check = check
        self._steps = steps
        self.metric_logs = metric_logs
        self._executions = executions
        self._open_epochs = open_epochs
        self.readers = Readers.CALLBACKS

    def __call__(self, iterator: Any) -> Logs:
        """Returns the logs after the next `steps_per_execution` steps. Schedules batches of `iterator` and waits if it has to.

        Raises:
            StopIteration: if the epoch is over and all its executions are done.
        """
        if not isinstance(iterator, BatchIterator):  # `train_on_batch` and `test_on_batch` pass a generator of one batch.
            self._executions.wait_until_idle()
            self.reset(None)
            batch = as_tensors(next(iterator))
            self._check_step(lambda: batch)
            return self._one_batch(batch)
        epoch = self._enter(iterator)
        if epoch.error is not None:
            error, epoch.error = epoch.error, None
            raise error
        if not epoch.ready and not self._executions.pending(iterator):
            iterator.begin_epoch_if_over()
            self._check_step(iterator.like_next)
            self._steps.begin()
        while not epoch.ready:
            self._schedule(iterator)
            logs = self._add_one(iterator)
            epoch.ready += self._steps.rest() if logs is None else logs
            if logs is None and not epoch.ready:
                raise StopIteration
        logs = epoch.ready.popleft()
        self.metric_logs.note_read(logs)
        self._steps.count_read()
        return logs

    def _one_batch(self, batch: Any) -> Logs:
        is_within = self._open_epochs.of(self) is not None  # A callback calls `train_on_batch`.
        if is_within:
            self.metric_logs.pause()
        try:
            logs = self._steps.one_batch(batch)
            self.metric_logs.note_read(logs)
            return logs
        finally:
            if is_within:
                self.metric_logs.go_on()
            elif (around := self._open_epochs.innermost()) is not None:  # It calls `test_on_batch`.
                self.metric_logs.publish_sums()
                around.metric_logs.come_back()

    def _add_one(self, iterator: BatchIterator) -> list[Logs] | None:
        """Waits for an execution of an epoch, and adds its steps. Returns None if there is none."""
        self._executions.await_any(iterator)
        with interrupts.held():  # After Ctrl-C in between counters would lack steps that the weights have.
            execution = self._executions.wait_for_any(iterator)
            return None if execution is None else self._steps.add(execution)

    def _schedule(self, iterator: BatchIterator) -> None:
        """Schedules as many executions as may be in flight."""
        try:
            while self._executions.pending(iterator) < self._executions.limit and self._steps.schedule(iterator, self.readers):
                pass
        except EmptyDatasetError:  # As in one process an evaluation without data has no logs, and the training goes on.
            call = calls.running()
            if call is None or call.name != "evaluate":
                raise

    def _check_step(self, batch: Callable[[], Any]) -> None:
        if self._check is None:
            return
        if not self._check.is_open:
            self._check.try_again()
            return
        with contextlib.suppress(EmptyDatasetError):
            if (examples := batch()) is not None:
                self._check.run(examples, examples_in(examples) or 0)

    def _enter(self, iterator: BatchIterator) -> _Epoch:
        epoch = self._open_epochs.with_iterator(self, iterator)
        if epoch is not None:
            self._end_within(epoch)
            return epoch
        other = self._open_epochs.of(self)
        if other is not None:
            self._executions.wait_until_idle()
            if other.is_around():  # A callback of its `fit` calls `fit` of the same model: it goes on later.
                other.ready += self._steps.rest()
                self.metric_logs.pause()  # Both use the same metrics.
            else:  # It was interrupted. Its last steps count, but not in the logs of this epoch.
                self._end_within(other)
                self.end(other)
                self.metric_logs.reset()
        if self._open_epochs.end_interrupted():
            gc.collect()  # Their models may be gone for the program. Then they are freed before this one takes memory.
        epoch = _Epoch(self, iterator)
        self._open_epochs.begin(epoch)
        return epoch

    def _end_within(self, epoch: _Epoch) -> None:
        for inner in self._open_epochs.within(epoch):  # They were interrupted.
            inner.loop.end(inner)

    def end(self, epoch: _Epoch) -> None:
        """Ends an epoch of this loop. Adds its last steps."""
        if epoch.error is not None:
            _log.warning("a step of the training before this one failed", exc_info=epoch.error)
        self.add_steps_of(epoch)
        self._steps.rest()
        self._open_epochs.end(epoch)
        if self._open_epochs.of(self) is not None:  # A callback of this `fit` has called the one of the epoch.
            self.metric_logs.go_on()

    def finishes_within(self, epoch: _Epoch, seconds: float) -> bool:
        """Waits for the executions of an epoch, and returns whether they have finished within that many seconds."""
        return self._executions.wait_for(epoch.iterator, seconds)

    def add_finished(self) -> int:
        """Adds the steps of the epoch that are done. Nothing is in flight. Returns how many batches they have taken."""
        epoch = self._open_epochs.of(self)
        assert epoch is not None
        self.add_steps_of(epoch)
        return epoch.iterator.taken

    def add_steps_of(self, epoch: _Epoch) -> None:
        """Waits for the executions of an epoch of this loop, and adds their steps."""
        self._executions.drain()
        while (logs := self._add_one(epoch.iterator)) is not None:
            epoch.ready += logs
        self._steps.count_read(are_all=True)

    def reset(self, error: Exception | None, is_asked: bool = True) -> None:
        """Prepares for metrics that start from zero. Nothing is in flight.

        An epoch that is not over, because a callback evaluates within it, goes on later with its own sums. If a callback of its
        own `fit` resets the metrics, or calls `train_on_batch`, which does so, it counts from there on, as in one process.

        Args:
            error: what a step raised while the strategy waited for it; for the epoch that is not over.
            is_asked: whether the metrics of this model start from zero, not those of another one that a callback trains.
        """
        self._steps.reset()
        if self._open_epochs.end_interrupted_of(self, error):  # No later step counts with its steps.
            error = None
        epoch = self._open_epochs.of(self)
        if epoch is None:
            self.metric_logs.reset()
            return
        epoch.error = epoch.error or error
        self.add_steps_of(epoch)
        if not is_asked or not epoch.is_in_its_call():
            self.metric_logs.carry()
        else:
            self.metric_logs.begin_anew()

    def finish(self, read: Logs = None) -> Logs:
        """Waits for the executions of an epoch at its end and returns its logs.

        Args:
            read: the last logs that Keras has read, if the epoch ends with them; None if it has all steps that are made.
        """
        epoch = self._open_epochs.of(self)
        assert epoch is not None
        self._end_within(epoch)
        self.add_steps_of(epoch)
        self.metric_logs.publish_sums(read)
        logs = self.metric_logs.logs
        self.end(epoch)
        if (around := self._open_epochs.innermost()) is not None:
            around.metric_logs.come_back()
        self.readers = Readers.CALLBACKS
        return logs
