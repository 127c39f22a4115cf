"""TensorFlow's coordinator for worker groups, with one reader of its queue for each group."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.cluster import Task
from tfdist.strategies.coordinator.members.call_gate import CallGate
from tfdist.strategies.coordinator.members.membership import Membership
from tfdist.strategies.coordinator.members.recovery import Recovery
from tfdist.strategies.coordinator.members.worker_groups import WorkerGroup
from tfdist.strategies.private_api.coordinator import CoordinatorWorker, cluster_of, count_if_scheduled_for_reader, function_of
from tfdist.strategies.private_api.eager_context import use_own_executor
from tfdist.strategies.private_api.overrides import overrides


@dataclass(frozen=True)
class GroupCall:
    """A function for TensorFlow's queue that gets its own error. TensorFlow would wait for the calls of all groups first.

    Attributes:
        run: runs in the thread of a group.
        fail: called with the error of `run`, if it is not that a worker is gone; in that case a group runs it again.
    """

    run: Callable[[], None]
    fail: Callable[[Exception], None]

    def __call__(self) -> None:
        """Calls `run`, for TensorFlow's queue, which takes functions."""
        self.run()


class _QueueReader(CoordinatorWorker):  # type: ignore[misc]
    """TensorFlow's thread of a group, with an executor for it alone: it does not wait for calls of other groups."""

    def __init__(self, group: WorkerGroup, cluster: Any, membership: Membership, check: Callable[[], None]) -> None:
        self._membership = membership
        self._check = check
        self._is_absent = not membership.is_live(group.number)
        super().__init__(group.number, group.devices[0], cluster)  # Starts the thread.

    @overrides(CoordinatorWorker)
    def _process_queue(self) -> None:
        self._tfdist_executor = use_own_executor()
        if self._is_absent:
            self.failure_handler.await_first(self.device_name)
            self._membership.restart(self.worker_index)
        super()._process_queue()

    @overrides(CoordinatorWorker)
    def _process_closure(self, closure: Any) -> None:
        count_if_scheduled_for_reader(self, closure)
        call, queue = function_of(closure), self._cluster.closure_queue
        if not isinstance(call, GroupCall):
            self._check_failures(closure)
            super()._process_closure(closure)
            return
        is_taken = True  # From the queue, which counts it.

        def give_back(error: Exception) -> None:
            nonlocal is_taken
            is_taken = False
            self._membership.leave(self.worker_index)
            self._on_closure_failure(closure, error)

        try:
            with self.failure_handler.wait_on_failure(
                on_failure_fn=give_back,
                on_transient_failure_fn=lambda: queue.put_back(closure),
                on_recovery_fn=self._on_worker_recovery,
                worker_device_name=self.device_name,
            ):
                closure.execute_on(self)
                queue.mark_finished()
        except Exception as error:
            if is_taken:
                queue.mark_finished()
            call.fail(error)

    def _check_failures(self, closure: Any) -> None:
        """Makes a function of the program fail if a ps is gone: TensorFlow would call it again without a limit."""
        execute_on = closure.execute_on

        def execute(worker: Any) -> None:
            try:
                execute_on(worker)
            except tf.errors.OpError:
                self._check()
                raise

        closure.execute_on = execute

    @overrides(CoordinatorWorker)
    def _on_worker_recovery(self) -> None:
        self._membership.restart(self.worker_index)
        super()._on_worker_recovery()


def coordinator_of(
    strategy: Any,
    groups: Sequence[WorkerGroup],
    workers: Sequence[Task],
    membership: Membership,
    gate: CallGate,
    server_def: Any,
    check: Callable[[], None],
) -> "tf.distribute.coordinator.ClusterCoordinator":
    """Returns TensorFlow's coordinator for worker groups: each function that is scheduled runs on the leader of one group.

    Args:
        strategy: the strategy, a ParameterServerStrategy.
        groups: its worker groups.
        workers: all worker tasks, with addresses.
        membership: gets to know which groups have been restarted. Those that are lost have not been part of the cluster yet.
        gate: holds calls while restarted workers are taken into the cluster.
        server_def: TensorFlow's description of the whole cluster.
        check: raises an error if a ps is gone.
    """
    strategy._num_workers = 0  # The coordinator would start one queue reader for each worker task.
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    strategy._num_workers = len(groups)
    cluster = cluster_of(coordinator)
    cluster._num_workers = len(groups)
    cluster._transient_timeouts_threshold = len(groups) // 10  # The value that TensorFlow would set.
    tasks_of = {group.devices[0]: group.tasks for group in groups}
    cluster.failure_handler = Recovery(server_def, cluster, workers, tasks_of, gate)
    cluster.workers = [_QueueReader(group, cluster, membership, check) for group in groups]
    return coordinator
