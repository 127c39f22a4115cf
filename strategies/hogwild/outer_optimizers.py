"""What the centre does with the changes that worker groups push: one class per rule.

A rule is traced into the groups' functions. `received` runs on a ps, for that ps' slice of the centre; `change` runs on the
worker and says what the group adds to its copy. In the formulas C is the centre, w the group's copy when the exchange began,
L what w was when its progress was last handed over, and d = w - L that progress.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.named_resource import NamedVariable
from tfdist.strategies.private_api import run_independently
from tfdist.synchronization import Synchronization


@dataclass
class Control:
    """What the chief tells a group with every call, as tensors in its function.

    Attributes:
        group: the number of the group, int32 scalar.
        weight: of the group's change, float32 scalar; those of all groups add up to 1.
        live: how many groups are training, int32 scalar.
        step: the number of the first step over all groups, int64 scalar.
        rate: the outer learning rate, float32 scalar.
        momentum: the outer momentum, float32 scalar.
        numbers: all of them, as they came.
    """

    group: Any
    weight: Any
    live: Any
    step: Any
    rate: Any
    momentum: Any
    numbers: Any

    SPEC = tf.TensorSpec([6], tf.float64)

    @classmethod
    def of(cls, numbers: Any) -> "Control":
        """Takes apart what `numbers` holds, in a function."""
        dtypes = (tf.int32, tf.float32, tf.int32, tf.int64, tf.float32, tf.float32)
        group, weight, live, step, rate, momentum = map(tf.cast, tf.unstack(numbers), dtypes)
        return cls(group, weight, live, step, rate, momentum, numbers)

    def sent(self, device: str) -> "Control":
        """The same on another device, where it goes as one message."""
        with tf.device(device):
            return Control.of(tf.identity(self.numbers))


class Average:
    """C += rate * weight * d: changes are averaged as they come. SINGA's rule (v0.3, src/server.cc) put right."""

    sends_copy = False
    """Whether the group sends w itself rather than d."""

    in_rounds = False
    """Whether changes wait on the ps until every live group has pushed one."""

    def __init__(self, options: Synchronization, groups: int) -> None:
        self.options = options
        self.groups = groups

    def state(self, slice_: NamedVariable) -> dict[str, NamedVariable]:
        """The variables that the rule keeps beside a slice of the centre; they begin with zeros."""
        del slice_
        return {}

    def received(self, centre: NamedVariable, state: dict[str, NamedVariable], sent: Any, control: Control) -> tuple[Any, Any]:
        """On the ps: takes in what a group sent.

        Returns:
            the centre as the group is to see it, and int64 [2] that goes to the worker's `change`.
        """
        del state
        centre.assign_add(tf.cast(self._weight(control), sent.dtype) * sent)
        return centre.read(), tf.zeros([2], tf.int64)

    def _weight(self, control: Control) -> Any:
        return control.rate * control.weight

    def last(self, centre: Any, before: Any, handed_over: Any, note: Any, seen: Any) -> tuple[Any, Any]:
        """On the worker: L from now on, and what it remembers of the note.

        Args:
            centre: the centre as the ps answered.
            before: L until now.
            handed_over: d as the ps has understood it.
            note: int64 [2] of `received`.
            seen: int64 scalar that was remembered, 0 at first.
        """
        del before, handed_over, note
        return centre, seen


class Sum(Average):
    """C += d: what SINGA released. n groups step n times as far, which diverges at learning rates that suit one."""

    def _weight(self, control: Control) -> Any:
        del control
        return 1.0


class DelayedNesterov(Average):
    """Averages each change as it comes and adds the momentum once per round of `live` changes (Async Local-SGD, 2401.09135).

    With A the sum of the round's weighted changes: m <- beta m + A and C += rate (beta m + weight d) at the end of the round,
    C += rate weight d before it. Over a round that is DiLoCo's Nesterov step.
    """

    def state(self, slice_: NamedVariable) -> dict[str, NamedVariable]:
        """Momentum and sum of the round [n], and the number of changes in it."""
        return {
            "momentum": NamedVariable("momentum", slice_.dtype, slice_.shape, slice_.device),
            "sum": NamedVariable("sum", slice_.dtype, slice_.shape, slice_.device),
            "count": NamedVariable("count", tf.int32, [], slice_.device),
            "mutex": NamedVariable("mutex", tf.int32, [], slice_.device),
        }

    def received(self, centre: NamedVariable, state: dict[str, NamedVariable], sent: Any, control: Control) -> tuple[Any, Any]:
        """See `Average.received`."""
        with alone(state["mutex"], sent):
            rate, beta, weight = (tf.cast(v, sent.dtype) for v in (control.rate, control.momentum, control.weight))
            change = weight * sent
            total, count = state["sum"].read() + change, state["count"].read() + 1
            is_last = count >= control.live
            momentum = state["momentum"].read()
            momentum = tf.where(is_last, beta * momentum + total, momentum)
            state["momentum"].assign(momentum)
            state["sum"].assign(tf.where(is_last, tf.zeros_like(total), total))
            state["count"].assign(tf.where(is_last, 0, count))
            kick = tf.where(is_last, beta * momentum, tf.zeros_like(momentum))
            centre.assign_add(rate * (kick + change))
            return centre.read(), tf.zeros([2], tf.int64)


class Nesterov(DelayedNesterov):
    """DiLoCo's outer step (2311.08105) by rounds: when every live group has pushed, m <- beta m + A and C += rate (A + beta m).

    With overlap nobody waits: until the round is complete a group goes on from its own copy, and takes the centre over later.
    Without, groups wait for each other within limits (`rounds.Rounds`), and momentum can be as high as in DiLoCo.
    """

    in_rounds = True

    def state(self, slice_: NamedVariable) -> dict[str, NamedVariable]:
        """As `DelayedNesterov.state`, with the groups that have pushed in this round, and the number of complete rounds."""
        state = super().state(slice_)
        state["pushed"] = NamedVariable("pushed", tf.int32, [self.groups], slice_.device)
        state["round"] = NamedVariable("round", tf.int64, [], slice_.device)
        return state

    def received(self, centre: NamedVariable, state: dict[str, NamedVariable], sent: Any, control: Control) -> tuple[Any, Any]:
        """See `Average.received`. The note is the number of complete rounds and whether this change completed one."""
        with alone(state["mutex"], sent):
            rate, beta, weight = (tf.cast(v, sent.dtype) for v in (control.rate, control.momentum, control.weight))
            total = state["sum"].read() + weight * sent
            pushed = tf.maximum(state["pushed"].read(), tf.one_hot(control.group, self.groups, dtype=tf.int32))
            is_last = tf.reduce_sum(pushed) >= control.live
            momentum = state["momentum"].read()
            momentum = tf.where(is_last, beta * momentum + total, momentum)
            step = tf.where(is_last, rate * (total + beta * momentum), tf.zeros_like(total))
            state["momentum"].assign(momentum)
            state["sum"].assign(tf.where(is_last, tf.zeros_like(total), total))
            state["pushed"].assign(tf.where(is_last, tf.zeros_like(pushed), pushed))
            rounds = state["round"].read() + tf.cast(is_last, tf.int64)
            state["round"].assign(rounds)
            centre.assign_add(step)
            return centre.read(), tf.stack([rounds, tf.cast(is_last, tf.int64)])

    def last(self, centre: Any, before: Any, handed_over: Any, note: Any, seen: Any) -> tuple[Any, Any]:
        """See `Average.last`: what was handed over to a round that goes on counts as known, else the group would lose it."""
        rounds, completed = note[0], note[1] > 0
        known = tf.where(rounds > seen, centre, before)
        return tf.where(completed, centre, known + handed_over), rounds


class Elastic:
    """EASGD (1412.6651): e = rate (w - C), C += e on the ps, w -= e on the worker."""

    sends_copy = True
    in_rounds = False

    def __init__(self, options: Synchronization, groups: int) -> None:
        self.rate = options.elastic_rate_of(groups)

    def state(self, slice_: NamedVariable) -> dict[str, NamedVariable]:
        """The lock: one group at a time, as in the paper."""
        return {"mutex": NamedVariable("mutex", tf.int32, [], slice_.device)}

    def received(self, centre: NamedVariable, state: dict[str, NamedVariable], sent: Any, control: Control) -> tuple[Any, Any]:
        """See `Average.received`; what the worker gets is e."""
        del control
        with alone(state["mutex"], sent):
            pull = self.rate * (sent - centre.read())
            centre.assign_add(pull)
            return pull, tf.zeros([2], tf.int64)


RULES: dict[str, Any] = {
    "average": Average,
    "nesterov": Nesterov,
    "delayed_nesterov": DelayedNesterov,
    "elastic": Elastic,
    "sum": Sum,
}
"""By their names in `Synchronization.outer`."""


@contextlib.contextmanager
def alone(mutex: NamedVariable, arrived: Any) -> Iterator[None]:
    """Around operations on a ps, once `arrived` is there: of two groups the second waits until those of the first are done."""
    graph = tf.compat.v1.get_default_graph()
    with tf.device(mutex.device):
        handle = tf.raw_ops.MutexV2(shared_name=mutex.name)
        run_independently(handle.op)
        with tf.control_dependencies([arrived]):
            lock = tf.raw_ops.MutexLock(mutex=handle)
        begin = len(graph.get_operations())
        with tf.control_dependencies([lock]):
            yield
        inside = [op for op in graph.get_operations()[begin:] if "VariableOp" in op.type]
        with tf.control_dependencies(inside):
            run_independently(tf.raw_ops.ConsumeMutexLock(mutex_lock=lock))
