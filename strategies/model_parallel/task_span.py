"""`TaskSpan`: what the tasks of one replica send each other, if the devices of a replica are in several tasks.

Each task traces a step of its own, in which a `SplitTensor` has only the parts of this task. A tensor that is not split has the
same value in all tasks of the replica, and so has its gradient: the tasks compute it alike. Where a tensor passes from one kind
to the other the tasks exchange something, in the step or for its gradient (f and g of Megatron-LM):

| from → to | the step | its gradient |
|---|---|---|
| whole → what every part uses (`enter`) | nothing | the sum over the tasks |
| one summand per task → whole (`add`) | the sum over the tasks | nothing |
| parts → whole (`gather`) | a concatenation | the task's own part |
"""

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.private_api.own_gradients import have_the_same_tape, register, with_gradient
from tfdist.strategies.private_api.ring_sums import RingSums

READ_SECONDS = 300.0
"""How long a task waits for the others with a read of a whole variable, or a call of a layer, between two steps."""

_ENTERED = "_tfdist_entered"
"""The attribute of a tensor of a graph that has what `enter` returns for it."""

_current: "list[TaskSpan]" = []  # At most one: a process has one strategy whose replicas span tasks.


class TaskSpan:
    """The tasks of the replica of this task.

    Args:
        ring: the collectives of these tasks.
        position: the number of this task among them.
        tasks: the number of them.
        meet: waits until all of these tasks read a value, given its name and for how many seconds at most; raises an error
            that says what another task does instead.
    """

    def __init__(self, ring: RingSums, position: int, tasks: int, meet: Callable[[str, float], None]) -> None:
        self._meet = meet
        self._ring = ring
        self._position = position
        self._tasks = tasks
        self._numbers = itertools.count()

    def next_number(self) -> int:
        """Returns a number for a variable that is created. All tasks create the same variables in the same order."""
        return next(self._numbers)

    def enter(self, value: tf.Tensor) -> tf.Tensor:
        """Returns a whole tensor for operations on parts.

        For one tensor of a function that is traced it returns the same result again: query, key and value of attention have one
        input, whose gradients are then added up before the sum over the tasks.
        """
        if not _has_gradient(value):
            return value
        if getattr(value, "graph", None) is not tf.compat.v1.get_default_graph():  # Eager ones have none.
            return self._entered(value)
        earlier = getattr(value, _ENTERED, None)
        if earlier is None or not have_the_same_tape(value, earlier):
            earlier = self._entered(value)
            setattr(value, _ENTERED, earlier)
        return earlier

    def _entered(self, value: tf.Tensor) -> tf.Tensor:
        return with_gradient("TfdistEnter", tf.identity, self.add, value)

    def add(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the sum of a tensor over the tasks."""
        return with_gradient("TfdistAdd", self._sum, self.enter, value) if _has_gradient(value) else self._sum(value)

    def gather(self, value: tf.Tensor, axis: int) -> tf.Tensor:
        """Returns the tensors of all tasks, concatenated along an axis."""
        if axis == 0:
            return self._gather_rows(value)
        return tf.concat(tf.unstack(self._gather_rows(value[tf.newaxis]), num=self._tasks), axis)

    def concatenate(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the rows of all tasks. Each task may have another number of them; the values of one task have as many."""
        own = tf.shape(values[0])[0]
        counts = self._gathered(own[tf.newaxis])
        before, after = tf.reduce_sum(counts[: self._position]), tf.reduce_sum(counts[self._position + 1 :])
        return [self.add(tf.pad(value, [[before, after], *[[0, 0]] * (value.shape.rank - 1)])) for value in values]

    def alike(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the value that the first task of the replica has, where all have computed the same up to rounding."""
        return self._sum(tf.zeros_like(value) if self._position else value)

    def read(self, value: tf.Tensor, axis: int, number: int, name: str) -> tf.Tensor:
        """Returns a whole variable between two steps, or within a function that is no step.

        Args:
            value: what this task has of it.
            axis: the axis along which it is split.
            number: the number that `next_number` has given.
            name: its name, for messages.

        Raises:
            RuntimeError: if another task of the replica makes another call, or does not read it within `READ_SECONDS`.
        """

        def gathered(own: tf.Tensor) -> tf.Tensor:
            packed, dtype = _packed(own)
            if not tf.executing_eagerly():
                return _unpacked(self._ring.gather(packed, READ_SECONDS), dtype)
            self._meet(name, READ_SECONDS)
            return _unpacked(self._ring.gather_by_number(packed, number, READ_SECONDS), dtype)

        own = value[tf.newaxis]
        try:
            parts = with_gradient("TfdistGather", gathered, self.own_rows, own) if _has_gradient(own) else gathered(own)
        except tf.errors.DeadlineExceededError:
            raise RuntimeError(
                f"{name} is sharded over {self._tasks} tasks, and another task has not read it within {READ_SECONDS:.0f} s; "
                "every task has to save the model or read its weights, also where only the chief uses them: tfdist keeps the "
                "chief's files"
            ) from None
        return tf.concat(tf.unstack(parts, num=self._tasks), axis)

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        self._meet_between_steps(value)
        return self._ring.sum(value)

    def _meet_between_steps(self, value: tf.Tensor) -> None:
        """Waits until all tasks come to this: a program may call a model in one task only. In a step they are together."""
        if tf.executing_eagerly() and replica_context.current() is None:
            self._meet(f"a value of shape {tuple(value.shape)} that a call of the model computes", READ_SECONDS)

    def _gather_rows(self, value: tf.Tensor) -> tf.Tensor:
        if not _has_gradient(value):
            return self._gathered(value)
        return with_gradient("TfdistGather", self._gathered, self.own_rows, value)

    def _gathered(self, value: tf.Tensor) -> tf.Tensor:
        self._meet_between_steps(value)
        packed, dtype = _packed(value)
        rows = None if value.shape[0] is None else value.shape[0] * self._tasks
        return tf.ensure_shape(_unpacked(self._ring.gather(packed), dtype), [rows, *value.shape[1:]])

    def own_rows(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the rows of a whole tensor that this task has gathered."""
        return tf.split(self.enter(value), self._tasks)[self._position]


def current() -> TaskSpan:
    """Returns the span of this process. Split tensors ask for it that have parts in other tasks."""
    return _current[0]


def set_current(span: TaskSpan) -> None:
    """Sets the span of this process."""
    _current[:] = [span]


def _has_gradient(value: tf.Tensor) -> bool:
    return bool(value.dtype.is_floating)


def _packed(value: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Returns a tensor in a dtype that TensorFlow gathers, and its own."""
    if value.dtype == tf.bfloat16:
        return tf.bitcast(value, tf.float16), value.dtype
    is_known = value.dtype in (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
    return value if is_known else tf.cast(value, tf.int64), value.dtype


def _unpacked(value: tf.Tensor, dtype: Any) -> tf.Tensor:
    return tf.bitcast(value, dtype) if dtype == tf.bfloat16 else tf.cast(value, dtype)


register("TfdistEnter", lambda gradient: current().add(gradient))
register("TfdistAdd", lambda gradient: current().enter(gradient))
register("TfdistGather", lambda gradient: current().own_rows(gradient))
