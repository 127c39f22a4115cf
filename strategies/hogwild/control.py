"""`Control`: the numbers that the chief sends to a worker group with every call."""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass
class Control:
    """What a group needs to know for a call, as tensors in the function that it runs.

    Attributes:
        group: number of the group, int32 scalar.
        weight: weight of what the group pushes, float32 scalar. The weights of all live groups add up to 1.
        live: number of groups that train, int32 scalar.
        step: number of the first step of the call, counted over all groups, int64 scalar.
        rate: outer learning rate, float32 scalar.
        momentum: outer momentum, float32 scalar.
        numbers: all of these as one tensor, see `SPEC`.
    """

    group: Any
    weight: Any
    live: Any
    step: Any
    rate: Any
    momentum: Any
    numbers: Any = None

    SPEC = tf.TensorSpec([6], tf.float64)
    """How the chief sends the numbers. float64 holds steps up to 2**53 exactly."""

    @classmethod
    def of(cls, numbers: Any) -> "Control":
        """Unpacks `numbers`, a tensor like `SPEC`, in a function."""
        dtypes = (tf.int32, tf.float32, tf.int32, tf.int64, tf.float32, tf.float32)
        group, weight, live, step, rate, momentum = map(tf.cast, tf.unstack(numbers), dtypes)
        return cls(group, weight, live, step, rate, momentum, numbers)

    def on(self, device: str) -> "Control":
        """Copies the numbers to `device` in one message."""
        with tf.device(device):
            return Control.of(tf.identity(self.numbers))
