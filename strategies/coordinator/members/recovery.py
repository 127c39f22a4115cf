"""Takes workers that have been restarted into the cluster again.

TensorFlow's own handler waits for all tasks of the cluster: one worker that is gone for good would keep all others that are
restarted from work. This one waits for the workers of a group, and updates the cluster without those that do not answer.
"""

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster import Task
from tfdist.strategies.coordinator.members import made_before, python_gradients
from tfdist.strategies.coordinator.members.call_gate import CallGate
from tfdist.strategies.coordinator.members.cut_links import CutLinks
from tfdist.strategies.coordinator.members.probe import PROBE_SECONDS, answering
from tfdist.strategies.coordinator.members.server_recovery import ServerRecovery
from tfdist.strategies.private_api.coordinator import WorkerPreemptionHandler
from tfdist.strategies.private_api.eager_context import update_server_def
from tfdist.strategies.private_api.overrides import overrides
from tfdist.strategies.runtime.deadline import Deadline

POLL_SECONDS = 0.5
"""How often a worker that is gone is asked whether it answers again."""

RESTORE_SECONDS = 300.0
"""After this long without success the ps are not waited for any more, although they answer."""

_LOST = ("Resource input tensor contains an invalid device",)
"""Messages of errors that mean that a worker has been restarted, beside those that TensorFlow knows."""

_NOT_SENT = re.compile(r"/job:worker/\S+ while calling /tensorflow\.WorkerService/RecvTensor")
"""In the error of a task that did not get a tensor from a worker. If that task is a ps, TensorFlow takes the ps for lost."""

_RESTARTED = "Unable to find a context_id"
"""In the error of a call to a task that has been restarted and is not part of the cluster yet."""

_NOT_TAKEN = "Unable to parse request"
"""gRPC's answer, as INTERNAL, to a request that has arrived damaged: no handler of the worker has seen it.

It was seen twice in hundreds of jobs. TensorFlow would end the training.
"""

_log = logging.getLogger("tfdist")


class Recovery(WorkerPreemptionHandler):  # type: ignore[misc]
    """What TensorFlow's coordinator does when a call to a worker fails.

    Args:
        server_def: TensorFlow's description of the cluster.
        cluster: the coordinator's `Cluster`.
        workers: all worker tasks, with addresses.
        tasks_of: for the device of each group's leader, the indices of the worker tasks of the group.
        gate: holds calls during an update.

    Attributes:
        servers: for strategies that go on after the loss of a ps; None for others.
        links: leaves out groups with a link that is cut.
    """

    servers: ServerRecovery | None = None
    links: CutLinks | None = None
    _not_restored: Exception | None = None

    def __init__(
        self, server_def: Any, cluster: Any, workers: Sequence[Task], tasks_of: dict[str, tuple[int, ...]], gate: CallGate
    ) -> None:
        self._workers = workers
        self._tasks_of = tasks_of
        self._gate = gate
        self._waiting: set[str] = set()  # The devices of groups whose workers are gone.
        self._replaced = cluster.failure_handler  # Its thread cannot be stopped before it has started.
        super().__init__(server_def, cluster)  # Starts the thread.

    @overrides(WorkerPreemptionHandler)
    def stop(self) -> None:
        """Ends the threads."""
        self._replaced.stop()
        super().stop()

    @overrides(WorkerPreemptionHandler)
    def _validate_preemption_failure(self, e: Any) -> None:
        made_before.check_error(e)
        python_gradients.check_error(e)
        is_not_sent = isinstance(e, (tf.errors.UnavailableError, tf.errors.AbortedError)) and _NOT_SENT.search(str(e))
        if not is_not_sent and not any(message in str(e) for message in _LOST):
            super()._validate_preemption_failure(e)

    @overrides(WorkerPreemptionHandler)
    @contextlib.contextmanager
    def wait_on_failure(
        self,
        on_failure_fn: Callable[[Exception], None] | None = None,
        on_transient_failure_fn: Callable[[], None] | None = None,
        on_recovery_fn: Callable[[], None] | None = None,
        worker_device_name: str = "(unknown)",
    ) -> Iterator[None]:
        """Surrounds a call. After the failure of a worker, waits until its group is complete and part of the cluster again."""

        def fail(error: Exception) -> None:
            with self._worker_up_cond:
                self._waiting.add(worker_device_name)
            if on_failure_fn is not None:
                on_failure_fn(error)

        def recover() -> None:
            with self._worker_up_cond:  # The base class has waited for the next update, which may be that for another group.
                self._worker_up_cond.wait_for(lambda: worker_device_name not in self._waiting)
            if on_recovery_fn is not None:
                on_recovery_fn()

        with super().wait_on_failure(fail, on_transient_failure_fn, recover, worker_device_name):
            try:
                yield
            except tf.errors.OpError as error:
                if on_transient_failure_fn is None:
                    raise
                if isinstance(error, tf.errors.InternalError) and _NOT_TAKEN in str(error):
                    _log.warning("a call to %s was damaged on its way, and is made again: %s", worker_device_name, error)
                elif self.servers is not None and self.servers.wait_if_lost(error):  # A link to a ps that is back is not cut.
                    if self._is_worker_lost(error, worker_device_name):  # Soon after a ps is back, an error may be of either.
                        raise
                elif self.links is not None and self.links.leave_out(error, worker_device_name):
                    on_transient_failure_fn()  # Another group makes the call now.
                    self.links.wait(worker_device_name, lambda: not self._should_preemption_thread_run)
                    return
                else:
                    raise
                on_transient_failure_fn()

    def _is_worker_lost(self, error: Exception, device: str) -> bool:
        """Returns whether an error is that of a worker of this group, which is gone or has been restarted."""
        try:
            self._validate_preemption_failure(error)
        except Exception:
            return False  # Of a ps, or of the program.
        indices = set(self._tasks_of.get(device, ()))
        return _RESTARTED in str(error) or not self._answering(indices, PROBE_SECONDS).issuperset(indices)

    def wait_for_servers(self, check: Callable[[], None]) -> None:
        """Waits until all ps are back and restored. Calls `check` from time to time, which raises an error if they are gone.

        Raises:
            RuntimeError: if they answer, and cannot be restored within `RESTORE_SECONDS`.
        """
        assert self.servers is not None
        with self._worker_up_cond:
            self.servers.is_due = True
            self._cluster_due_for_update_or_finish.set()
        latest = Deadline.after(RESTORE_SECONDS)
        while self.servers.is_due:
            check()
            if latest.expired():
                raise RuntimeError(
                    f"the ps answer, and could not be taken into the cluster again within {RESTORE_SECONDS:.0f} s; start the "
                    "job again from its backup"
                ) from self._not_restored
            with self._worker_up_cond:
                self._worker_up_cond.wait_for(lambda: not (self.servers and self.servers.is_due), POLL_SECONDS)

    @overrides(WorkerPreemptionHandler)
    def _preemption_handler(self) -> None:
        while True:
            self._cluster_due_for_update_or_finish.wait()
            if not self._should_preemption_thread_run:
                return
            if not self._update():
                time.sleep(POLL_SECONDS)

    def await_first(self, device: str) -> None:
        """Waits until the group with this leader, which the cluster has not had yet, is complete and part of the cluster."""
        with self._worker_up_cond:
            self._waiting.add(device)
            self._cluster_due_for_update_or_finish.set()
            self._worker_up_cond.wait_for(lambda: device not in self._waiting)

    def _update(self) -> bool:
        """Updates the cluster if a group that waits is complete. Returns whether none waits, nor a ps."""
        if self.servers is not None and self.servers.is_due and not self._take_back_servers(self.servers):
            return False
        with self._worker_up_cond:
            waiting = {index for device in self._waiting for index in self._tasks_of.get(device, ())}
        # Only these: a group may stay away for hours.
        answers = self._answering(waiting, PROBE_SECONDS)
        with self._worker_up_cond:
            complete = {device for device in self._waiting if answers.issuperset(self._tasks_of.get(device, ()))}
        if complete:
            # A worker that is only slow must stay, so those whose calls have not failed get more time.
            answers |= self._answering({task.index for task in self._workers} - waiting, 3 * PROBE_SECONDS)
            try:
                with self._gate.closed():
                    update_server_def(_without(self._server_def, {task.index for task in self._workers} - answers))
            except Exception as error:
                _log.debug("the cluster could not be updated: %s", error)
                try:
                    self._validate_preemption_failure(error)
                except Exception as of_ps:
                    if self.servers is not None and self.servers.notice(error):
                        return False  # A ps is gone meanwhile. It is taken back first.
                    self._error_from_recovery = of_ps  # A thread of a group raises it.
                else:
                    return False  # Another worker is gone meanwhile.
        with self._worker_up_cond:
            self._waiting -= complete
            self._worker_up_cond.notify_all()  # Each time: a group may have been complete before its thread waited.
            is_done = not self._waiting and not (self.servers is not None and self.servers.is_due)  # One may be lost by now.
            if is_done and self._should_preemption_thread_run:
                self._cluster_due_for_update_or_finish.clear()
            return is_done

    def _take_back_servers(self, servers: ServerRecovery) -> bool:
        """Takes the ps into the cluster again and restores them, if all answer. Returns whether it did."""
        if not servers.do_all_answer():
            return False
        workers = {task.index for task in self._workers}
        gone = workers - self._answering(workers, PROBE_SECONDS)
        try:
            with self._gate.closed():
                update_server_def(_without(self._server_def, gone))
                servers.restore()
        except Exception as error:
            _log.debug("the ps could not be restored: %s", error, exc_info=True)
            self._not_restored = error
            return False
        with self._worker_up_cond:
            servers.is_due = False
            self._worker_up_cond.notify_all()
        return True

    def _answering(self, indices: set[int], seconds: float) -> set[int]:
        """Returns those of these workers that answer within `seconds`."""
        asked = [task for task in self._workers if task.index in indices]
        return {task.index for task in answering(asked, Deadline.after(seconds))}


def _without(server_def: Any, gone: set[int]) -> Any:
    """Returns a copy of TensorFlow's description of the cluster without these worker tasks."""
    copy = type(server_def)()
    copy.CopyFrom(server_def)
    for job in copy.cluster.job:
        if job.name == "worker":
            for index in gone:
                job.tasks.pop(index, None)
    return copy
