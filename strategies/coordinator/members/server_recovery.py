"""`ServerRecovery`: what happens when a ps is lost whose variables can be computed again.

A strategy that has one goes on when a ps is killed: calls that have failed wait until the ps has been started again, and are
then made again. `recovery.py` takes the ps into the cluster, and the strategy gives it back what it held.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import tensorflow as tf

from tfdist.cluster import Task
from tfdist.strategies.coordinator.members.probe import PROBE_SECONDS, answering
from tfdist.strategies.named_variable import NamedVariable
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.task_address import device_of

Result = TypeVar("Result")

LATE_SECONDS = 30.0
"""For this long after a ps is back errors of calls that it has caused may arrive."""

_LATE = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.FailedPreconditionError)


class ServerRecovery:
    """Knows which ps are lost. Any thread may ask.

    Args:
        servers: the ps tasks, with addresses.
        restore: gives back what these ps held, after they have been restarted. Runs in a thread of its own.
        wait: waits until `is_due` is false again. Raises ServersGoneError if a ps does not come back.

    Attributes:
        is_due: whether a ps is lost and has not been restored yet. `Recovery` sets it to false.
    """

    def __init__(
        self, servers: Sequence[Task], restore: Callable[[list[Task]], None], wait: Callable[[], None] = lambda: None
    ) -> None:
        self.is_due = False
        self._servers = tuple(servers)
        self._restore = restore
        self._wait = wait
        self._restored_at = -math.inf
        # A ps that has been restarted has no such variable.
        self._markers = {task: NamedVariable("marker", tf.bool, [], device_of(task)) for task in servers}
        for marker in self._markers.values():
            marker.assign(True)

    def wait_if_lost(self, error: Exception) -> bool:
        """Waits for a ps that is lost, if one is, after an error of a call. Returns whether the call has to be made again."""
        if self.is_due or not self.do_all_answer() or self._restarted():
            self._wait()
            return True
        # The call may have begun before the ps was back.
        return isinstance(error, _LATE) and time.monotonic() < self._restored_at + LATE_SECONDS

    def notice(self, error: Exception) -> bool:
        """Notes that a ps is lost, if one is, after an error of an update of the cluster. Returns whether one is."""
        if isinstance(error, tf.errors.OpError) and (not self.do_all_answer() or self._restarted()):
            self.is_due = True
        return self.is_due

    def do_all_answer(self) -> bool:
        """Returns whether all ps answer."""
        return len(answering(self._servers, Deadline.after(PROBE_SECONDS))) == len(self._servers)

    def restore(self) -> None:
        """Gives back what the ps held that have been restarted. They are part of the cluster again."""
        if lost := self._restarted():
            self._restore(lost)
            for task in lost:
                self._markers[task].assign(True)
        self._restored_at = time.monotonic()

    def retried(self, action: Callable[[], Result]) -> Result:
        """Returns `action()`; calls it again after each ps that was lost meanwhile is back. It has to bear that."""
        while True:
            try:
                return action()
            except tf.errors.OpError as error:
                if not self.wait_if_lost(error):
                    raise

    def _restarted(self) -> list[Task]:
        return [task for task, marker in self._markers.items() if not _has_value(marker)]


def _has_value(marker: NamedVariable) -> bool:
    try:
        with tf.device(marker.device):
            return bool(tf.raw_ops.VarIsInitializedOp(resource=marker.handle()).numpy())
    except tf.errors.OpError:
        return False  # The ps has been restarted, and is not part of the cluster yet.
