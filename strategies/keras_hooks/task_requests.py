"""`TaskRequests`: what one task asks of all after their next step: to save, as the chief does, or to stop.

A save of `multi_worker_mirrored` reads values that only all tasks together have, and no task can stop alone. The requests
travel with the sums of the metrics, which the tasks make after each execution anyway.
"""

import tensorflow as tf

_ENDS = 2.0**20
"""The request of a task that ends after the save: more than the sum of those of all tasks that go on."""


class TaskRequests:
    """The requests of this task, and the sum of those of all tasks.

    Attributes:
        own: what all tasks sum up, a float32 variable of two numbers: 1.0 if this task asks for a save, more if it ends after
            it; and 1.0 if it asks all to stop.
        total: the sum of the last execution, a float32 variable of two numbers.
    """

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self.own, self.total = (tf.Variable([0.0, 0.0], trainable=False) for _ in range(2))

    def ask_to_save(self, ends: bool) -> None:
        """Asks all tasks to save after the next execution, and tells them whether this one ends then."""
        self.own[0].assign(_ENDS if ends else 1.0)

    def is_save_due(self) -> bool:
        """Returns whether all tasks have to save now. Call it after each execution. It fulfills the request of this task."""
        if self.total.numpy()[0] == 0.0:
            return False
        self.own[0].assign(0.0)
        return True

    def ends_after_save(self) -> bool:
        """Returns whether the task that has asked for the save ends after it. Call it with `is_save_due`."""
        return bool(self.total.numpy()[0] >= _ENDS)

    def withdraw_save(self) -> None:
        """Takes back a request that is fulfilled in another way."""
        self.own[0].assign(0.0)

    def ask_to_stop(self, is_wanted: bool) -> None:
        """Asks all tasks to stop after the next execution, or takes that back."""
        self.own[1].assign(float(is_wanted))

    def is_stop_due(self) -> bool:
        """Returns whether a task has asked all to stop now. Call it after each execution."""
        return bool(self.total.numpy()[1] > 0.0)
