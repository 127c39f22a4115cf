"""Executions: calls of functions on worker groups, from the moment when they are scheduled until the chief has their results.

Every execution has an owner, such as the epoch for which it was scheduled, and only its owner takes its result: a `predict`
inside a callback of `fit` waits for its own. Every wait ends: with a result, with the error of a function, or because no worker
group answers.
"""

import enum
import logging
import math
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
from tfdist.strategies.private_api import dispatch_context, schedule_for_reader
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


class State(enum.Enum):
    """The states of an execution."""

    QUEUED = "waits for a group"
    RUNNING = "a group runs it"
    FINISHED = "the chief has its result"
    CANCELLED = "no group starts it any more, and nobody gets its result"


class Execution:
    """One call of a function on a worker group.

    Attributes:
        function: the function.
        owner: the object that takes the result from `wait_for_any`; None if only the execution itself holds it.
        state: its state. A backup queues it again while a group that does not answer still runs it.
        started: the times at which groups have started it, by the number of the group; `time.monotonic`, in seconds.
        group: the number of the group that has finished it; -1 before.
        result: what the function returned, on the chief; None before.
    """

    def __init__(self, function: Callable[[int], Any], owner: Any = None) -> None:
        self.function = function
        self.owner = owner
        self.state = State.QUEUED
        self.started: dict[int, float] = {}
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
        self._lock = threading.Lock()  # Held while an execution starts, or is cancelled because it has not.
        self._in_flight: set[Execution] = set()
        self._finished: dict[Any, deque[Execution]] = {}  # Those that their owners have not taken, by owner.
        self._error: Exception | None = None  # Raised in the watcher's thread, for the next wait.
        self._durations: deque[float] = deque(maxlen=99)  # Of the last calls, in seconds.
        self._watcher: threading.Thread | None = None
        self.give_up: Callable[[int], None] | None = None
        groups = len(coordinator.strategy.worker_groups)
        # A single group is exact: callbacks have seen a step before the next one starts.
        self.limit = 1 if groups == 1 else IN_FLIGHT_PER_GROUP * groups

    def __len__(self) -> int:
        return len(self._in_flight)

    def pending(self, owner: Any) -> int:
        """Returns how many executions of `owner` are in flight, or finished and not taken yet."""
        return sum(execution.owner is owner for execution in self._in_flight) + len(self._finished.get(owner, ()))

    def schedule(self, function: Callable[[int], Any], owner: Any = None, group: int | None = None) -> Execution:
        """Makes the next free group call `function`; another group if that one is lost.

        Args:
            function: takes the number of the group and returns nested tensors. Called in the thread of the group.
            owner: hashable; see `Execution`.
            group: the number of the group that takes it, unless that group fails. Pass `start_seconds` to `result_of`, because
                the group may be gone already.
        """
        execution = Execution(function, owner)
        try:
            self._schedule(execution, group)
        except Exception:
            self.cancel()
            raise
        self._in_flight.add(execution)
        if self.give_up is not None and self._watcher is None:
            # In a thread: calls to a worker that is stopped block the chief's main thread.
            self._watcher = threading.Thread(target=_watch, args=(weakref.ref(self),), name="tfdist-backups", daemon=True)
            self._watcher.start()
        return execution

    def _schedule(self, execution: Execution, group: int | None = None) -> None:
        events, durations = self._events, self._durations
        execution.state = State.QUEUED

        def run() -> None:
            group, started = dispatch_context().worker_index, time.monotonic()
            with self._lock:
                if execution.state in (State.FINISHED, State.CANCELLED):
                    return  # By a backup, or while it was queued.
                execution.started[group], execution.state = started, State.RUNNING
            try:
                # Copied to the chief, where the result stays if the worker is gone.
                result = tf.nest.map_structure(chief_device.fetched, execution.function(group), expand_composites=True)
            except BaseException:
                if execution.state is State.RUNNING:
                    execution.state = State.QUEUED
                events.put(None)  # The coordinator decides whether this is an error, or a lost worker and it schedules again.
                raise
            durations.append(time.monotonic() - started)
            events.put((execution, group, result))

        # The public `schedule` takes TensorFlow functions only. This one runs Python in the thread of a group.
        if group is None:
            self._coordinator._cluster.schedule(run, args=(), kwargs={})
        else:
            schedule_for_reader(self._coordinator, group, run)

    def wait_for_any(self, owner: Any) -> Execution | None:
        """Waits until one more execution of `owner` has finished and returns it. Returns None if none is pending.

        Raises:
            WorkersGoneError: if no worker group has been complete for `WORKERS_GONE_SECONDS`.
            Exception: what a function raised on a worker.
        """
        self._wait_until(lambda: owner in self._finished or not self.pending(owner))
        finished = self._finished.get(owner)
        if not finished:
            return None
        execution = finished.popleft()
        if not finished:
            del self._finished[owner]
        return execution

    def _wait_until(self, is_over: Callable[[], bool], latest: float = math.inf) -> None:
        """Gives finished executions to their owners until `is_over`, or until nothing is in flight, or until `latest`."""
        if self._error is not None:
            self._raise_error()
        last_alive = time.monotonic()
        while self._in_flight and not is_over() and (now := time.monotonic()) < latest:
            try:
                event = self._events.get(timeout=min(POLL_SECONDS, latest - now))
            except queue.Empty:
                last_alive = self._check_workers(last_alive)
                event = None
            if event is None:
                self._raise_error()
            elif event[0] in self._in_flight:  # Else it was cancelled, or another group has finished it before.
                execution, execution.group, execution.result = event[0], *event[1:]
                self._in_flight.remove(execution)
                execution.state = State.FINISHED
                if execution.owner is not None:
                    self._finished.setdefault(execution.owner, deque()).append(execution)

    def back_up(self) -> None:
        """Schedules again what groups do not answer for, if no execution waits for a group."""
        in_flight = list(self._in_flight)
        if self.give_up is None or any(execution.state is State.QUEUED for execution in in_flight):
            return
        median = statistics.median(list(self._durations) or [WORKERS_GONE_SECONDS / BACKUP_TIMES])
        latest = time.monotonic() - max(BACKUP_SECONDS, BACKUP_TIMES * median)
        for execution in in_flight:
            if max(list(execution.started.values())) < latest:
                for group in list(execution.started):
                    _log.warning("worker group %d does not answer; others do its steps until it does", group)
                    self.give_up(group)
                try:
                    self._schedule(execution)
                except Exception as error:  # The coordinator's, which it raises only once.
                    self._error = error
                    self._events.put(None)
                    return

    def result_of(self, execution: Execution, start_seconds: float | None = None) -> Any:
        """Waits for `execution` and returns its result. Raises as `wait_for_any` does.

        Args:
            execution: the execution.
            start_seconds: how long a group may take to start it. Then it is cancelled, and the result is None.
        """
        if start_seconds is not None:
            self._wait_until(lambda: execution.state is State.FINISHED, time.monotonic() + start_seconds)
            with self._lock:
                if execution.state is State.QUEUED:
                    execution.state = State.CANCELLED
                    self._in_flight.discard(execution)
                    return None
        self._wait_until(lambda: execution.state is State.FINISHED)
        if execution.state is not State.FINISHED:
            raise RuntimeError("a step was cancelled after the error of another")
        return execution.result

    def wait_until_idle(self) -> None:
        """Waits until nothing is in flight. The results stay with their owners. Raises as `wait_for_any` does."""
        self._wait_until(lambda: False)

    def cancel(self) -> None:
        """Cancels all executions and forgets the coordinator's error, after an error: another `fit` starts clean."""
        for execution in self._in_flight:
            execution.state = State.CANCELLED
        self._in_flight.clear()
        self._finished.clear()
        try:
            self._coordinator.done()
        except Exception:  # The error that the caller raises.
            _log.debug("dropped with the first error", exc_info=True)

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            self.cancel()
            raise error
        # A function that fails wakes this thread a moment before the coordinator knows. Ask again, now and after a poll.
        for _ in range(20):
            try:
                self._coordinator.done()
            except Exception:
                self.cancel()
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
            self.cancel()
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
