"""Steps that were given to worker groups and are not done yet. Every wait ends, and ends with the first that is done."""

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
from tfdist.strategies.coordinator import chief_device
from tfdist.strategies.private_api import dispatch_context
from tfdist.strategies.runtime.peers import is_listening, waiting_for

WORKERS_GONE_SECONDS = 60.0
"""After this long without any complete group, training fails: TensorFlow's coordinator would wait for ever."""

IN_FLIGHT_PER_GROUP = 2
"""One step that a group computes and one that waits for it: enough to keep it busy, few enough to stop soon."""

BACKUP_SECONDS = 10.0
BACKUP_TIMES = 10.0
"""A group is given up on when it takes longer for a call than this, and so many times as long as groups usually do: a worker
that is stopped or cut off answers nothing, not even with an error, while one that is only slower is still useful.
"""

POLL_SECONDS = 5.0

_log = logging.getLogger("tfdist")


class WorkersGoneError(RuntimeError):
    """Of every worker group some worker stopped answering while steps were under way."""


class Execution:
    """One call of a function on a worker group.

    Attributes:
        function: what is called.
        began: when, for each group that runs it.
        is_waiting: whether it waits for a group.
        group: the number of the group that has run it, once it is done.
        result: what the function gave, on the chief, once it is done.
        is_done: whether it is.
    """

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function
        self.began: dict[int, float] = {}
        self.is_waiting = True
        self.group = -1
        self.result: Any = None
        self.is_done = False


class Executions:
    """What the groups are doing for one strategy.

    Attributes:
        limit: how many executions should be under way at most.
        give_up: called with the number of a group that does not come back from a call, which then goes to another one as well:
            the backup executions of MapReduce (Dean and Ghemawat, OSDI 2004, 3.6). None where a call must not run twice.
    """

    def __init__(self, coordinator: "tf.distribute.coordinator.ClusterCoordinator", workers: tuple[Task, ...]) -> None:
        self._coordinator = coordinator
        self._workers = workers
        self._events: queue.SimpleQueue[tuple[Execution, int, Any] | None] = queue.SimpleQueue()
        self._open: set[Execution] = set()
        self._seconds: deque[float] = deque(maxlen=99)  # What the last calls took.
        self._watcher: threading.Thread | None = None
        self.give_up: Callable[[int], None] | None = None
        groups = len(coordinator.strategy.worker_groups)
        # One group alone is exact: nothing is begun before the callbacks have seen the step before.
        self.limit = 1 if groups == 1 else IN_FLIGHT_PER_GROUP * groups

    def __len__(self) -> int:
        return len(self._open)

    def schedule(self, function: Callable[[int], Any]) -> Execution:
        """Lets any group run `function(number of the group)`, which gives nested tensors; another group if that one is lost."""
        execution = Execution(function)
        self._schedule(execution)
        self._open.add(execution)
        if self.give_up is not None and self._watcher is None:
            # In a thread of its own: what the chief asks of a worker that is stopped stops the chief's main thread.
            self._watcher = threading.Thread(target=_watch, args=(weakref.ref(self),), name="tfdist-backups", daemon=True)
            self._watcher.start()
        return execution

    def _schedule(self, execution: Execution) -> None:
        events, seconds = self._events, self._seconds
        execution.is_waiting = True

        def run() -> None:
            if execution.is_done:
                return  # By another group, before the coordinator gave what a lost one had begun to this one.
            group = dispatch_context().worker_index
            execution.began[group], execution.is_waiting = time.monotonic(), False
            try:
                # Copied to this process, so that it stays when the worker is gone.
                result = tf.nest.map_structure(chief_device.fetched, execution.function(group), expand_composites=True)
            except BaseException:
                execution.is_waiting = True
                events.put(None)  # The coordinator decides whether this is an error or a worker that was lost.
                raise
            seconds.append(time.monotonic() - execution.began[group])
            events.put((execution, group, result))

        try:
            # The public `schedule` takes functions of TensorFlow only; this one runs Python in the thread of a group.
            self._coordinator._cluster.schedule(run, args=(), kwargs={})
        except Exception:
            self.drop()
            raise

    def wait_for_any(self) -> Execution | None:
        """Waits until one more execution is done and returns it; None where none is open.

        Raises:
            WorkersGoneError: when no worker group has been complete for a minute.
            Exception: what a function raised on a worker.
        """
        last_alive = time.monotonic()
        while self._open:
            try:
                done = self._events.get(timeout=POLL_SECONDS)
            except queue.Empty:
                last_alive = self._check_workers(last_alive)
                done = None
            if done is None:
                self._raise_error()
            elif done[0] in self._open:  # Not one that was dropped, or that another group was faster with.
                execution, execution.group, execution.result = done[0], *done[1:]
                self._open.remove(execution)
                execution.is_done = True
                return execution
        return None

    def back_up(self) -> None:
        """Gives calls from which groups do not come back to other groups, once these have nothing else to do."""
        in_flight = list(self._open)
        if self.give_up is None or any(execution.is_waiting for execution in in_flight):
            return
        usual = statistics.median(list(self._seconds) or [WORKERS_GONE_SECONDS / BACKUP_TIMES])
        latest = time.monotonic() - max(BACKUP_SECONDS, BACKUP_TIMES * usual)
        for execution in in_flight:
            if max(list(execution.began.values())) < latest:
                for group in list(execution.began):
                    _log.warning("worker group %d does not answer; others do its steps until it does", group)
                    self.give_up(group)
                self._schedule(execution)

    def result_of(self, execution: Execution) -> Any:
        """Waits for `execution` and returns its result. Raises as `wait_for_any`."""
        while not execution.is_done:
            if self.wait_for_any() is None:
                raise RuntimeError("a step was dropped after the error of another")
        return execution.result

    def finish(self) -> None:
        """Waits for all. Raises as `wait_for_any`."""
        while self.wait_for_any() is not None:
            pass

    def wait_for_all(self) -> None:
        """Waits until the groups are done with all, and leaves what they gave for `wait_for_any`, which this raises as."""
        done = list(iter(self.wait_for_any, None))
        for execution in done:
            execution.is_done = False
            self._open.add(execution)
            self._events.put((execution, execution.group, execution.result))

    def settle(self) -> None:
        """Waits for all that a `fit` left under way when it was interrupted, and drops their errors."""
        try:
            self.finish()
        except WorkersGoneError:
            raise
        except Exception:
            _log.warning("a step of the training before this one failed", exc_info=True)

    def drop(self) -> None:
        """After an error: forgets all executions and the coordinator's copy of the error; another `fit` starts clean."""
        self._open.clear()
        try:
            self._coordinator.done()
        except Exception:  # The error that is being raised anyway.
            _log.debug("dropped with the first error", exc_info=True)

    def _raise_error(self) -> None:
        # A function that fails wakes this thread a moment before the coordinator knows: it asks again then or after a poll.
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
        now = time.monotonic()
        gone = {task.index for task in self._workers if not is_listening(task)}
        if any(gone.isdisjoint(group.tasks) for group in self._coordinator.strategy.worker_groups):
            return now
        if now - last_alive > WORKERS_GONE_SECONDS:
            self._open.clear()
            raise WorkersGoneError(
                f"no worker group has been complete for {WORKERS_GONE_SECONDS:.0f} s, there is no answer from "
                f"{waiting_for(task for task in self._workers if task.index in gone)}; training cannot go on without one"
            )
        return last_alive


def _watch(reference: "weakref.ref[Executions]") -> None:
    """Calls `back_up` now and then, as long as there is what `reference` is to."""
    while (steps := reference()) is not None:
        steps.back_up()
        del steps
        time.sleep(POLL_SECONDS)
