"""Executions: calls of functions on worker groups, from the moment when they are scheduled until the chief has their results.

Every wait ends: with a result, with the error of a function, or because no worker group answers.
"""

import logging
import queue
import statistics
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.cluster import Task
from tfdist.strategies.private_api import dispatch_context
from tfdist.strategies.runtime import chief_device
from tfdist.strategies.runtime.peers import is_listening, waiting_for

WORKERS_GONE_SECONDS = 60.0
"""After this long without a complete worker group training fails. TensorFlow's coordinator would wait without a limit."""

IN_FLIGHT_PER_GROUP = 2
"""One execution that a group runs and one that waits for it. More would delay the end of training when it is stopped."""

BACKUP_SECONDS = 10.0
BACKUP_TIMES = 10.0
"""An execution gets a backup if it takes longer than BACKUP_SECONDS and than BACKUP_TIMES the median of the last ones.

A worker that is stopped or cut off does not answer, not even with an error. A worker that is only slower is still useful.
"""

POLL_SECONDS = 5.0
"""How often the chief looks for workers that are gone and for executions that need a backup."""

_log = logging.getLogger("tfdist")


class WorkersGoneError(RuntimeError):
    """In every worker group some worker has stopped answering while executions were in flight."""


class Execution:
    """One call of a function on a worker group. It is queued, then in a group's hands, then done.

    A backup can queue it again while a group that does not answer still has it, so `is_queued` and `is_done` are independent.

    Attributes:
        function: the function.
        started: the times at which groups have started it, by the number of the group; `time.monotonic`, in seconds.
        is_queued: whether it waits for a group.
        is_done: whether the chief has taken its result.
        group: the number of the group that has finished it; -1 before.
        result: what the function returned, on the chief; None before.
    """

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function
        self.started: dict[int, float] = {}
        self.is_queued = True
        self.is_done = False
        self.group = -1
        self.result: Any = None


class Executions:
    """The executions in flight of one strategy.

    Attributes:
        limit: how many executions should be in flight at most.
        give_up: called with the number of a group that does not answer, when its execution gets a backup on another group (the
            backup executions of MapReduce: Dean and Ghemawat, OSDI 2004, section 3.6). None if a function must not run twice.
    """

    def __init__(self, coordinator: "tf.distribute.coordinator.ClusterCoordinator", workers: tuple[Task, ...]) -> None:
        self._coordinator = coordinator
        self._workers = workers
        # Results as (execution, number of the group, result); None when a function has raised.
        self._events: queue.SimpleQueue[tuple[Execution, int, Any] | None] = queue.SimpleQueue()
        self._in_flight: set[Execution] = set()
        self._durations: deque[float] = deque(maxlen=99)  # Of the last calls, in seconds.
        self._watcher: threading.Thread | None = None
        self.give_up: Callable[[int], None] | None = None
        groups = len(coordinator.strategy.worker_groups)
        # A single group is exact: callbacks have seen a step before the next one starts.
        self.limit = 1 if groups == 1 else IN_FLIGHT_PER_GROUP * groups

    def __len__(self) -> int:
        return len(self._in_flight)

    def schedule(self, function: Callable[[int], Any]) -> Execution:
        """Makes the next free group call `function`; another group if that one is lost.

        Args:
            function: takes the number of the group and returns nested tensors. Called in the thread of the group.
        """
        execution = Execution(function)
        self._schedule(execution)
        self._in_flight.add(execution)
        if self.give_up is not None and self._watcher is None:
            # In a thread: calls to a worker that is stopped block the chief's main thread.
            self._watcher = threading.Thread(target=_watch, args=(weakref.ref(self),), name="tfdist-backups", daemon=True)
            self._watcher.start()
        return execution

    def _schedule(self, execution: Execution) -> None:
        events, durations = self._events, self._durations
        execution.is_queued = True

        def run() -> None:
            if execution.is_done:
                return  # A lost group had started it, and a backup has finished it.
            group = dispatch_context().worker_index
            started = time.monotonic()
            execution.started[group], execution.is_queued = started, False
            try:
                # Copied to the chief, where the result stays if the worker is gone.
                result = tf.nest.map_structure(chief_device.fetched, execution.function(group), expand_composites=True)
            except BaseException:
                execution.is_queued = True
                events.put(None)  # The coordinator decides whether this is an error, or a lost worker and it schedules again.
                raise
            durations.append(time.monotonic() - started)
            events.put((execution, group, result))

        try:
            # The public `schedule` takes TensorFlow functions only. This one runs Python in the thread of a group.
            self._coordinator._cluster.schedule(run, args=(), kwargs={})
        except Exception:
            self.drop()
            raise

    def wait_for_any(self) -> Execution | None:
        """Waits until one more execution is done and returns it. Returns None if none is in flight.

        Raises:
            WorkersGoneError: if no worker group has been complete for `WORKERS_GONE_SECONDS`.
            Exception: what a function raised on a worker.
        """
        last_alive = time.monotonic()
        while self._in_flight:
            try:
                event = self._events.get(timeout=POLL_SECONDS)
            except queue.Empty:
                last_alive = self._check_workers(last_alive)
                event = None
            if event is None:
                self._raise_error()
            elif event[0] in self._in_flight:  # Else it was dropped, or another group has finished it before.
                execution, execution.group, execution.result = event[0], *event[1:]
                self._in_flight.remove(execution)
                execution.is_done = True
                return execution
        return None

    def back_up(self) -> None:
        """Schedules again what groups do not answer for, if no execution waits for a group."""
        in_flight = list(self._in_flight)
        if self.give_up is None or any(execution.is_queued for execution in in_flight):
            return
        median = statistics.median(list(self._durations) or [WORKERS_GONE_SECONDS / BACKUP_TIMES])
        latest = time.monotonic() - max(BACKUP_SECONDS, BACKUP_TIMES * median)
        for execution in in_flight:
            if max(list(execution.started.values())) < latest:
                for group in list(execution.started):
                    _log.warning("worker group %d does not answer; others do its steps until it does", group)
                    self.give_up(group)
                self._schedule(execution)

    def result_of(self, execution: Execution) -> Any:
        """Waits for `execution` and returns its result. Raises as `wait_for_any` does."""
        while not execution.is_done:
            if self.wait_for_any() is None:
                raise RuntimeError("a step was dropped after the error of another")
        return execution.result

    def finish(self) -> None:
        """Waits for all executions. Raises as `wait_for_any` does."""
        while self.wait_for_any() is not None:
            pass

    def wait_for_all(self) -> None:
        """Waits until the groups have finished all executions, and leaves them in flight: `wait_for_any` returns them later.

        Raises as `wait_for_any` does.
        """
        for execution in list(iter(self.wait_for_any, None)):
            execution.is_done = False
            self._in_flight.add(execution)
            self._events.put((execution, execution.group, execution.result))

    def settle(self) -> None:
        """Waits for all executions that an interrupted `fit` has left in flight, and drops their errors."""
        try:
            self.finish()
        except WorkersGoneError:
            raise
        except Exception:
            _log.warning("a step of the training before this one failed", exc_info=True)

    def drop(self) -> None:
        """Forgets all executions and the coordinator's error, after an error: another `fit` starts clean."""
        self._in_flight.clear()
        try:
            self._coordinator.done()
        except Exception:  # The error that the caller raises.
            _log.debug("dropped with the first error", exc_info=True)

    def _raise_error(self) -> None:
        # A function that fails wakes this thread a moment before the coordinator knows. Ask again, now and after a poll.
        for _ in range(20):
            try:
                self._coordinator.done()
            except Exception:
                self.drop()
                raise
            if not self._events.empty():
                return
            time.sleep(0.01)

    def _check_workers(self, last_alive: float) -> float:
        """Returns the last time at which a worker group was complete."""
        now = time.monotonic()
        gone = {task.index for task in self._workers if not is_listening(task)}
        if any(gone.isdisjoint(group.tasks) for group in self._coordinator.strategy.worker_groups):
            return now
        if now - last_alive > WORKERS_GONE_SECONDS:
            self._in_flight.clear()
            raise WorkersGoneError(
                f"no worker group has been complete for {WORKERS_GONE_SECONDS:.0f} s, there is no answer from "
                f"{waiting_for(task for task in self._workers if task.index in gone)}; training cannot go on without one"
            )
        return last_alive


def _watch(reference: "weakref.ref[Executions]") -> None:
    """Calls `back_up` every `POLL_SECONDS`, as long as the executions exist."""
    while (executions := reference()) is not None:
        executions.back_up()
        del executions
        time.sleep(POLL_SECONDS)
