"""`Edits`: what a callback computes within an epoch from weights that it reads, and assigns, as one that clips or prunes them.

In one process nothing changes a weight between the two. Worker groups are steps ahead of callbacks: what they train of a weight
after the callback has read it would be lost, after each batch, and a model would learn next to nothing.
"""

import threading
from collections.abc import Callable

from tfdist.strategies.coordinator.calls.executions import Executions
from tfdist.strategies.keras_hooks import calls
from tfdist.strategies.keras_hooks.replicas.warned import warn_once


class Edits:
    """Lets groups train nothing between a read and an assignment, once a program has made both between two steps.

    The first read within a call of `fit` waits: an assignment may follow. If none does, the next reads do not wait, because
    most callbacks only look at weights.

    Args:
        executions: the executions of the strategy.
        has_unread: returns whether steps are done after which Keras has not called its callbacks yet.
    """

    def __init__(self, executions: Executions, has_unread: Callable[[], bool]) -> None:
        self._executions = executions
        self._has_unread = has_unread
        self._read_after = -1  # How many executions were taken when the program has last read a weight.
        self._first_read: tuple[calls.Call | None, int] = (None, -1)  # In which call the last one was, and after how many.
        self._thread: int | None = None  # That of the program, if its reads wait.

    def before_read(self) -> None:
        """Notes that the program is about to read a weight, on the chief."""
        if self._thread == threading.get_ident() or self._is_first_read():  # Groups have threads of their own.
            self._executions.wait_until_idle()
        self._read_after = self._executions.taken

    def _is_first_read(self) -> bool:
        """Returns whether a callback reads a weight for the first time within a call of `fit` while steps are in flight."""
        call = calls.running()
        if call is None or call is self._first_read[0] or not len(self._executions) or not calls.is_in_this_thread():
            return False
        self._first_read = call, self._executions.taken
        return True

    def before_assignment(self, name: str) -> None:
        """Waits for the executions in flight: the program is about to assign a weight, on the chief.

        Args:
            name: that of the weight, or its path.
        """
        taken, is_late = self._executions.taken, bool(len(self._executions))
        if self._read_after == taken and (is_late or self._first_read[1] == taken):
            self._thread = threading.get_ident()
            if is_late:
                warn_once(
                    "a callback reads and assigns %s within an epoch, and worker groups are steps ahead of callbacks: what "
                    "they have trained of it after it was read is lost, this time. From now on reading a weight within an "
                    "epoch waits for the steps in flight, so that no more is lost; where that takes too long, assign it at "
                    "the end of an epoch",
                    name.partition(":")[0],
                )
        if is_late:
            self._executions.wait_until_idle()

    def warn_if_late(self, name: str) -> None:
        """Warns that steps ahead of callbacks keep the old value, if the program assigns another one now, between two steps.

        Args:
            name: that of a variable that the steps read and do not train, such as a learning rate.
        """
        if len(self._executions) or self._has_unread():
            warn_once(
                "a callback assigns %s within an epoch, and worker groups are steps ahead of callbacks: steps that they have "
                "begun keep the old value; assign it between two epochs, or use a LearningRateSchedule for a learning rate "
                "that changes from step to step",
                name.partition(":")[0],
            )
