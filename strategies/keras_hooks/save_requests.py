"""`SaveRequests`: the chief's wish to save, and any task's to stop, which every task sees after the same step.

A save of `multi_worker_mirrored` reads values that only all tasks together have, and no task can stop alone. The wish travels
with the sums of the metrics, which the tasks make after each execution anyway.
"""

import tensorflow as tf

_ENDS = 2.0**20
"""The wish of a task that ends after the save: more than the sum of all wishes of tasks that go on."""


class SaveRequests:
    """The wish, as this task has it and as all have it.

    Attributes:
        own: what all tasks sum up, a float32 variable: 1.0 if this task wants to save, more if it ends then; and 1.0 if it
            wants to stop.
        total: the sum of the last execution, a float32 variable.
    """

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self.own, self.total = (tf.Variable([0.0, 0.0], trainable=False) for _ in range(2))

    def make(self, ends: bool) -> None:
        """Asks all tasks to save after the next execution. They hear whether this one ends then."""
        self.own[0].assign(_ENDS if ends else 1.0)

    def is_due(self) -> bool:
        """Returns whether all tasks have to save now. Call it after each execution; then the wish is fulfilled."""
        if self.total.numpy()[0] == 0.0:
            return False
        self.own[0].assign(0.0)
        return True

    def ends(self) -> bool:
        """Returns whether the task that wanted the save ends after it. Call it with `is_due`."""
        return bool(self.total.numpy()[0] >= _ENDS)

    def withdraw(self) -> None:
        """Takes back a wish that is fulfilled otherwise."""
        self.own[0].assign(0.0)

    def stop(self, is_wanted: bool) -> None:
        """Asks all tasks to stop after the next execution, or takes that back."""
        self.own[1].assign(float(is_wanted))

    def stops(self) -> bool:
        """Returns whether a task has asked all to stop now. Call it after each execution."""
        return bool(self.total.numpy()[1] > 0.0)
