"""`Control`: the numbers that the chief sends to a worker group with every call."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.hogwild.synchronization.local_variable import LocalVariable, sent_values


@dataclass
class Control:
    """What a group needs to know for a call, as tensors in the function that it runs.

    Attributes:
        group: number of the group, int32 scalar.
        weight: weight of what the group pushes, float32 scalar. The weights of all live groups add up to 1.
        live: number of groups that train, int32 scalar. Negative if the group has nothing to push, see `rounds.arrive`.
        step: number of the first step of the call, counted over all groups, int64 scalar.
        rate: outer learning rate, float32 scalar.
        momentum: outer momentum, float32 scalar.
        grace: how long the group waits for a round at most, in seconds, float32 scalar.
        delay: updates between push and pull, int32 scalar. Not used if the option is 0.
        begins: 1 if all groups begin an epoch, see `rounds.arrive`, else 0; int32 scalar.
        numbers: all of these as one tensor, see `SPEC`.
        wanted: number of the round to which the group pushes, int64 scalar. The group adds it (see push_pull.py) for outer
            optimizers that work in rounds.
        replica: the local replica of the group, [n], for outer optimizers with `sends_replica`; else None.
    """

    group: Any
    weight: Any
    live: Any
    step: Any
    rate: Any
    momentum: Any
    grace: Any
    delay: Any = 1
    begins: Any = 0
    numbers: Any = None
    wanted: Any = None
    replica: Any = None

    SPEC = tf.TensorSpec([9], tf.float64)
    """How the chief sends the numbers. float64 holds steps up to 2**53 exactly."""

    LIVE = 2
    """Position of `live` in the numbers."""

    @classmethod
    def of(cls, numbers: Any) -> "Control":
        """Unpacks `numbers`, a tensor like `SPEC`, in a function."""
        dtypes = (tf.int32, tf.float32, tf.int32, tf.int64, tf.float32, tf.float32, tf.float32, tf.int32, tf.int32)
        group, weight, live, step, rate, momentum, grace, delay, begins = map(tf.cast, tf.unstack(numbers), dtypes)
        return cls(group, weight, live, step, rate, momentum, grace, delay, begins, numbers)

    def with_progress(self, has_progress: Any) -> "Control":
        """Returns the control of a later push of the same call, if `has_progress`, bool scalar, is true."""
        later = tf.concat([tf.abs(self.numbers[:-1]), [0.0]], axis=0)  # Only `live` can be negative; `begins` is the last.
        return Control.of(tf.where(has_progress, later, self.numbers))

    def with_rates(self, rate: float, momentum: float) -> "Control":
        """Returns the control with another outer learning rate and outer momentum."""
        rates = tf.constant([rate, momentum], self.numbers.dtype)
        return Control.of(tf.concat([self.numbers[:4], rates, self.numbers[6:]], axis=0))


class CallNumbers:
    """The one vector that the chief sends with a call of a group: `Control`, the number of steps, and values of the chief.

    Args:
        sent: the variables whose values the chief sends, scalars: learning rates.
        counts: how many counts follow, see `StepCounters.counts_at`.

    Attributes:
        spec: the type of the vector.
    """

    def __init__(self, sent: Sequence[LocalVariable], counts: int = 0) -> None:
        self._sent = list(sent)
        self._fixed = int(Control.SPEC.shape[0])
        self.spec = tf.TensorSpec([self._fixed + 1 + len(self._sent) + counts], tf.float64)

    def pack(self, control: Sequence[float], steps: int, counts: Sequence[float] = ()) -> Any:
        """Returns the vector for a call, numpy float64."""
        return np.array([*control, steps, *(float(variable.value_on_chief()) for variable in self._sent), *counts])

    @contextlib.contextmanager
    def unpacked(self, numbers: Any) -> Iterator[tuple[Control, Any, list[Any]]]:
        """Unpacks the vector in a function, where the variables have the values in it.

        Yields also the steps, int32 scalar, and the counts, float64 scalars.
        """
        steps, *values = tf.unstack(numbers[self._fixed :])
        rates, counts = values[: len(self._sent)], values[len(self._sent) :]
        sent = {id(variable): tf.cast(value, variable.dtype) for variable, value in zip(self._sent, rates, strict=True)}
        with sent_values(sent):
            yield Control.of(numbers[: self._fixed]), tf.cast(steps, tf.int32), counts
