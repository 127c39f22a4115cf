"""Executions: calls of functions on worker groups, from the moment when they are scheduled until the chief has their results.

Every execution has an owner, such as the epoch for which it was scheduled, and only its owner takes its result: a `predict`
inside a callback of `fit` waits for its own. Every wait ends: with a result, with the error of a function, or because no worker
group answers.
"""

import enum
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
from tfdist.strategies.coordinator.membership import Membership
from tfdist.strategies.coordinator.tracing import tracing_lock
from tfdist.strategies.private_api import dispatch_context, schedule_on_coordinator
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
        running: the groups that run it, by number, and when they have started, in seconds of the clock of the executions.
        group: the number of the group that has finished it; -1 before.
        result: what the function returned, on the chief; None before.
    """

    def __init__(self, function: Callable[[int], Any], owner: Any = None) -> None:
        self.function = function
        self.owner = owner
        self.state = State.QUEUED
        self.running: dict[int, float] = {}
        self.group = -1
        self.result: Any = None


class Executions:
    """The executions in flight of one strategy.

    An execution is in flight from `schedule` until the chief has its result and no live group runs it any more. The thread of
    the group notes that it has finished, so that a group is idle although the chief's main thread is busy, in a callback.

    Args:
        coordinator: TensorFlow's ClusterCoordinator.
        workers: the worker tasks, with addresses.
        membership: the groups that are live. Executions note which join and which are lost.
        clock: returns the current moment in seconds. The default does not count the time of tracing.

    Attributes:
        limit: how many executions should be in flight at most.
        gives_up: whether a group that does not answer is lost, and its execution gets a backup on another group (the
            backup executions of MapReduce: Dean and Ghemawat, OSDI 2004, section 3.6). False if a function must not run twice.
    """

    def __init__(
        self,
        coordinator: "tf.distribute.coordinator.ClusterCoordinator",
        workers: tuple[Task, ...],
        membership: Membership,
        clock: Callable[[], float] = tracing_lock.now,
    ) -> None:
        self._coordinator = coordinator
        self._workers = workers
        self._membership = membership
        self._clock = clock
        self._lock = threading.RLock()  # Of the states of executions.
        # Executions that have finished; None when a function has raised.
        self._events: queue.SimpleQueue[Execution | None] = queue.SimpleQueue()
        self._in_flight: set[Execution] = set()
        self._finished: dict[Any, deque[Execution]] = {}  # Those that their owners have not taken, by owner.
        self._error: Exception | None = None  # Raised in the watcher's thread, for the next wait.
        self._durations: deque[float] = deque(maxlen=99)  # Of the last calls, in seconds.
        self._watcher: threading.Thread | None = None
        self.gives_up = False
        groups = len(coordinator.strategy.worker_groups)
        # A single group is exact: callbacks have seen a step before the next one starts.
        self.limit = 1 if groups == 1 else IN_FLIGHT_PER_GROUP * groups

    def __len__(self) -> int:
        return len(self._in_flight)

    def pending(self, owner: Any) -> int:
        """Returns how many executions of `owner` are in flight, or finished and not taken yet."""
        return sum(execution.owner is owner for execution in self._in_flight) + len(self._finished.get(owner, ()))

    def schedule(self, function: Callable[[int], Any], owner: Any = None) -> Execution:
        """Makes the next free group call `function`; another group if that one is lost.

        Args:
            function: takes the number of the group and returns nested tensors. Called in the thread of the group.
            owner: hashable; see `Execution`.
        """
        execution = Execution(function, owner)
        try:
            self._schedule(execution)
        except Exception:
            self.cancel()
            raise
        self._in_flight.add(execution)
        if self.gives_up and self._watcher is None:
            # In a thread: calls to a worker that is stopped block the chief's main thread.
            self._watcher = threading.Thread(target=_watch, args=(weakref.ref(self),), name="tfdist-backups", daemon=True)
            self._watcher.start()
        return execution

    def _schedule(self, execution: Execution) -> None:
        # The public `schedule` takes TensorFlow functions only. This one runs Python in the thread of a group.
        schedule_on_coordinator(self._coordinator, lambda: self._run(execution, dispatch_context().worker_index))

    def _run(self, execution: Execution, group: int) -> None:
        """Runs an execution in the thread of a group."""
        with self._lock:
            if execution.state in (State.FINISHED, State.CANCELLED) or any(map(self._membership.is_live, execution.running)):
                return  # A backup has finished or runs it, or an error has cancelled it.
            started = self._clock()
            execution.running[group], execution.state = started, State.RUNNING
        self._membership.join(group)
        try:
            # Copied to the chief, where the result stays if the worker is gone.
            result = tf.nest.map_structure(chief_device.fetched, execution.function(group), expand_composites=True)
        except BaseException:
            self._membership.lose(group)
            with self._lock:
                del execution.running[group]
                if execution.state is State.RUNNING and not execution.running:
                    execution.state = State.QUEUED
            self._events.put(None)  # The coordinator decides whether this is an error, or a lost worker and it schedules again.
            raise
        with self._lock:
            del execution.running[group]
            self._durations.append(self._clock() - started)
            if execution.state in (State.QUEUED, State.RUNNING):  # Else another group has finished it before.
                execution.state, execution.group, execution.result = State.FINISHED, group, result
        self._events.put(execution)

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

    def _wait_until(self, is_over: Callable[[], bool]) -> None:
        """Gives finished executions to their owners until `is_over`, or until nothing is in flight."""
        if self._error is not None:
            self._raise_error()
        last_alive = time.monotonic()
        while self._in_flight and not is_over():
            try:
                execution = self._events.get(timeout=POLL_SECONDS)
            except queue.Empty:
                last_alive = self._check_workers(last_alive)
                execution = None
            if execution is None:
                self._raise_error()
            elif execution in self._in_flight and self._is_over(execution):  # Else it was cancelled, or is not over.
                self._in_flight.remove(execution)
                if execution.owner is not None:
                    self._finished.setdefault(execution.owner, deque()).append(execution)

    def _is_over(self, execution: Execution) -> bool:
        """Returns whether an execution has finished, and no live group still runs its backup or what it is the backup of."""
        with self._lock:
            return execution.state is State.FINISHED and not any(map(self._membership.is_live, execution.running))

    def back_up(self) -> None:
        """Gives up groups that do not answer, and schedules again what they run, if no execution waits for a group."""
        in_flight = list(self._in_flight)
        if not self.gives_up or any(execution.state is State.QUEUED for execution in in_flight):
            return
        median = statistics.median(list(self._durations) or [WORKERS_GONE_SECONDS / BACKUP_TIMES])
        latest = self._clock() - max(BACKUP_SECONDS, BACKUP_TIMES * median)
        for execution in in_flight:
            with self._lock:
                if not execution.running or max(execution.running.values()) >= latest:
                    continue
                groups = [group for group in execution.running if self._membership.is_live(group)]
                is_finished = execution.state is State.FINISHED
                if not is_finished:
                    execution.state = State.QUEUED
            for group in groups:
                _log.warning("worker group %d does not answer; others do its steps until it does", group)
                self._membership.lose(group)
            if is_finished:
                self._events.put(execution)
                continue
            try:
                self._schedule(execution)
            except Exception as error:  # The coordinator's, which it raises only once.
                self._error = error
                self._events.put(None)
                return

    def result_of(self, execution: Execution) -> Any:
        """Waits for `execution` and returns its result. Raises as `wait_for_any` does."""
        self._wait_until(lambda: execution not in self._in_flight)
        if execution.state is not State.FINISHED:
            raise RuntimeError("a step was cancelled after the error of another")
        return execution.result

    def wait_until_idle(self) -> None:
        """Waits until nothing is in flight. The results stay with their owners. Raises as `wait_for_any` does."""
        self._wait_until(lambda: False)

    def cancel(self) -> None:
        """Cancels all executions and forgets the coordinator's error, after an error: another `fit` starts clean."""
        with self._lock:
            for execution in self._in_flight:
                if execution.state is not State.FINISHED:
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
