"""Steps that were given to worker groups and are not done yet. Every wait ends, and ends with the first that is done."""

import logging
import queue
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.cluster import Task
from tfdist.strategies._private import dispatch_context
from tfdist.strategies.startup import is_listening, waiting_for

WORKERS_GONE_SECONDS = 60.0
"""After this long without any complete group, training fails: TensorFlow's coordinator would wait for ever."""

UNDER_WAY_PER_GROUP = 2
"""One step that a group computes and one that waits for it: enough to keep it busy, few enough to stop soon."""

POLL_SECONDS = 5.0
CHIEF = "/job:chief/replica:0/task:0/device:CPU:0"

_log = logging.getLogger("tfdist")


class WorkersGoneError(RuntimeError):
    """Of every worker group some worker stopped answering while steps were under way."""


class Execution:
    """One call of a function on a worker group.

    Attributes:
        group: the number of the group that has run it, once it is done.
        result: what the function gave, on the chief, once it is done.
        is_done: whether it is.
    """

    def __init__(self) -> None:
        self.group = -1
        self.result: Any = None
        self.is_done = False


class StepsUnderWay:
    """What the groups are doing for one strategy.

    Attributes:
        limit: how many executions should be under way at most.
    """

    def __init__(self, coordinator: "tf.distribute.coordinator.ClusterCoordinator", workers: tuple[Task, ...]) -> None:
        self._coordinator = coordinator
        self._workers = workers
        self._events: queue.SimpleQueue[Execution | None] = queue.SimpleQueue()
        self._open: set[Execution] = set()
        groups = len(coordinator.strategy.worker_groups)
        # One group alone is exact: nothing is begun before the callbacks have seen the step before.
        self.limit = 1 if groups == 1 else UNDER_WAY_PER_GROUP * groups

    def __len__(self) -> int:
        return len(self._open)

    def schedule(self, function: Callable[[int], Any]) -> Execution:
        """Lets any group run `function(number of the group)`, which gives nested tensors; another group if that one is lost."""
        execution, events = Execution(), self._events

        def run() -> None:
            try:
                group = dispatch_context().worker_index
                # Copied to this process, so that it stays when the worker is gone.
                result = tf.nest.map_structure(_to_chief, function(group), expand_composites=True)
            except BaseException:
                events.put(None)  # The coordinator decides whether this is an error or a worker that was lost.
                raise
            execution.group, execution.result = group, result
            events.put(execution)

        try:
            # The public `schedule` takes functions of TensorFlow only; this one runs Python in the thread of a group.
            self._coordinator._cluster.schedule(run, args=(), kwargs={})
        except Exception:
            self.drop()
            raise
        self._open.add(execution)
        return execution

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
            elif done in self._open:  # Not one that was dropped.
                self._open.remove(done)
                done.is_done = True
                return done
        return None

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
            self._events.put(execution)

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


def _to_chief(value: Any) -> Any:
    with tf.device(CHIEF):
        return tf.identity(value) if isinstance(value, tf.Tensor) else value
