"""Outer optimizers: how the global parameters change when a worker group pushes. One class per published algorithm.

An outer optimizer is a pure value. `init` and `update` take and return tensors, as in optax, and use no variables, so a test
needs no cluster. `shard.Shard` applies updates to the variables on a ps. To add an outer optimizer, write a class
here, add a line to `OUTER_OPTIMIZERS`, and add a line to `tfdist.outer_options.OUTER_OPTIMIZERS` with the options that it
accepts.

In the formulas, C is the global parameters and w the local replica of a group. L is the group's baseline, the part of w that
the group has already pushed or pulled. d = w - L is its progress.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.strategies.hogwild.synchronization import rounds
from tfdist.strategies.hogwild.synchronization.control import Control
from tfdist.strategies.hogwild.synchronization.rounds import Round
from tfdist.synchronization import Synchronization

ARRAYS = SimpleNamespace(where=tf.where, maximum=tf.maximum, minimum=tf.minimum, sum=tf.reduce_sum)
"""What the functions of rounds.py need of TensorFlow."""

State = dict[str, Any]
"""Tensors by name: what an outer optimizer keeps for a shard of the global parameters."""


class Scaled(NamedTuple):
    """factor * vector, to be added to a variable in one pass over its memory.

    Attributes:
        factor: scalar.
        vector: [n].
    """

    factor: Any
    vector: Any


class Update(NamedTuple):
    """The result of one update.

    Attributes:
        increment: what to add to the global parameters, [n] or `Scaled`; None for nothing.
        state: new values of the entries of the state that change, or `Scaled` for what to add to them.
        reply: what to send to the group, [n]. None sends the global parameters after the increment.
        round: for optimizers that work in rounds, int64 [2]: the number of complete rounds, and 1 if this push completed one,
            else 0. If it did, `OuterOptimizer.end_round` follows.
        awaited: for these, the number of the round for whose end the group waits, int64 scalar, 0 for none.
    """

    increment: Any
    state: State = {}  # noqa: RUF012 (never changed)
    reply: Any = None
    round: Any = None
    awaited: Any = None


class OuterOptimizer:
    """Base class of the outer optimizers. It has no state.

    An update runs on a ps, for one shard of the global parameters. If it uses state or reads the global parameters, it holds
    the lock of the shard. Otherwise it only adds its increment, which is atomic without a lock.
    """

    pushes_parameters = False
    """Whether a group pushes its local replica w. Otherwise it pushes its progress d."""

    reads_parameters = False
    """Whether `update` reads the global parameters."""

    sends_replica = False
    """Whether a group sends its local replica w beside its progress, as `Control.replica`. See nonnegatives.py."""

    in_rounds = False
    """Whether updates collect the pushes of a round, see rounds.py. They then return `Update.round`."""

    quorum = 1
    """Groups that must have pushed before a round can end without the others. Used only `in_rounds`."""

    not_saved: tuple[str, ...] = ()
    """Entries of the state that checkpoints leave out. All others have shape [n] or []."""

    @property
    def of_averages(self) -> "OuterOptimizer":
        """The outer optimizer of variables that no gradient changes, as moving averages. Its outer rates are 1 and 0."""
        return self

    def init(self, shape: Any, dtype: tf.DType) -> State:
        """Returns the initial state for a shard of global parameters.

        Args:
            shape: shape of the shard, [n].
            dtype: dtype of the shard.
        """
        return {}

    def update(self, parameters: Any, state: State, push: Any, control: Control) -> Update:
        """Computes how the global parameters and the state change.

        Args:
            parameters: the shard of the global parameters, [n]; None unless `reads_parameters`.
            state: the state for this shard.
            push: what the group pushed, [n]: its progress, or its local replica if `pushes_parameters`.
            control: weight of the group, number of live groups, learning rate and momentum.
        """
        raise NotImplementedError

    def expire(self, state: State, wanted: Any, control: Control) -> Update:
        """As `update`, if a group has waited for the end of round `wanted` for the grace time. Used only `in_rounds`."""
        raise NotImplementedError

    def change_round(self, state: State, change: Callable[..., Any], groups: Any, control: Control) -> Update:
        """As `update`, if the chief tells a ps of groups, int32 [groups]. Used only `in_rounds`.

        `change` is `rounds.leave`, `rounds.finish` or `rounds.settle`.
        """
        raise NotImplementedError

    def end_round(self, parameters: Any, state: dict[str, Any], control: Control) -> None:
        """Makes the step at the end of a round. Used only `in_rounds`.

        It changes the variables themselves: as functions of tensors, the step makes twice as many passes over the memory.

        Args:
            parameters: the shard of the global parameters, a `NamedVariable`.
            state: the state for this shard, `NamedVariable`s.
            control: see `update`.
        """
        raise NotImplementedError

    def baseline(self, parameters: Any, baseline: Any, pushed: Any, round_: Any, last_round: Any) -> Any:
        """Returns the new baseline L of the group, [n]. Runs on the worker. Not used if `pushes_parameters`.

        Args:
            parameters: the global parameters in the reply, [n].
            baseline: the baseline before, [n].
            pushed: the progress that the ps received, [n]. Compression makes it differ from the progress of the group.
            round_: for the reply: the number of complete rounds, and 1 if that of the push is among them, else 0; int64 [2].
            last_round: number of complete rounds in the last reply before, int64 scalar. None unless `in_rounds`.
        """
        return parameters


class Average(OuterOptimizer):
    """C += rate * weight * d. Local SGD (arXiv 1805.09767); SINGA's rule (v0.3, src/server.cc) with a mean for its sum."""

    def update(self, parameters: Any, state: State, push: Any, control: Control) -> Update:
        """See `OuterOptimizer.update`."""
        return Update(Scaled(control.rate * control.weight, push))


class Sum(OuterOptimizer):
    """C += d, as SINGA was released. n groups step n times as far, which diverges at learning rates that suit one group."""

    def update(self, parameters: Any, state: State, push: Any, control: Control) -> Update:
        """See `OuterOptimizer.update`."""
        return Update(push)

    @property
    def of_averages(self) -> OuterOptimizer:
        """See `OuterOptimizer.of_averages`. The sum would move them as many times as far as there are groups."""
        return Average()


class DelayedNesterov(OuterOptimizer):
    """Adds each push at once, and the momentum once per round of `live` pushes. Async Local-SGD (arXiv 2401.09135).

    A is the weighted sum of the pushes of a round. Every push adds rate * weight * d to C. The last push of a round first
    updates the momentum, m = beta * m + A, and also adds rate * beta * m. The sum over a round is DiLoCo's Nesterov step.
    """

    def init(self, shape: Any, dtype: tf.DType) -> State:
        """Returns momentum and weighted sum of the round, [n], and the number of pushes in the round, int32 scalar."""
        return {"momentum": tf.zeros(shape, dtype), "sum": tf.zeros(shape, dtype), "count": tf.zeros([], tf.int32)}

    def update(self, parameters: Any, state: State, push: Any, control: Control) -> Update:
        """See `OuterOptimizer.update`."""
        rate, beta, weight = (tf.cast(v, push.dtype) for v in (control.rate, control.momentum, control.weight))
        before = {name: state[name] for name in ("momentum", "sum", "count")}
        progress = weight * push

        def with_momentum() -> Any:
            total, count = before["sum"] + progress, before["count"] + 1

            def step() -> tuple[Any, State]:
                momentum = beta * before["momentum"] + total
                return beta * momentum + progress, {"momentum": momentum, "sum": tf.zeros_like(total), "count": 0 * count}

            return tf.cond(count >= control.live, step, lambda: (progress, before | {"sum": total, "count": count}))

        # Without, it leaves the state to the pushes that have momentum, as that of a group that trains alone.
        change, new_state = tf.cond(beta > 0, with_momentum, lambda: (progress, before))
        return Update(rate * change, new_state)


@dataclass(frozen=True)
class Nesterov(OuterOptimizer):
    """One SGD step with Nesterov momentum per round. DiLoCo (arXiv 2311.08105).

    A is the weighted sum of the pushes of the round: m = beta * m + A; C += rate * (A + beta * m). A group that pushes twice in
    a round adds to A twice. rounds.py says when a round ends.

    Attributes:
        groups: number of worker groups.
        quorum: groups that must have pushed before a round can end without the others.
        fragments: number of fragments.
    """

    groups: int
    quorum: int = 1
    fragments: int = 1

    in_rounds = True
    not_saved = ("sum", "pushed", "absent", "round", "least")  # A save ends the open round first. "least": nonnegatives.py.

    def init(self, shape: Any, dtype: tf.DType) -> State:
        """Returns momentum and weighted sum, [n], and the open round, see `rounds.Round`."""
        return {
            "momentum": tf.zeros(shape, dtype),
            "sum": tf.zeros(shape, dtype),
            "pushed": tf.zeros([self.groups], tf.int32),
            "absent": tf.zeros([self.groups], tf.int32),
            "round": tf.zeros([], tf.int64),
        }

    def update(self, parameters: Any, state: State, push: Any, control: Control) -> Update:
        """See `OuterOptimizer.update`."""
        wanted = state["round"] + 1 if control.wanted is None else control.wanted
        group = tf.one_hot(control.group, self.groups, dtype=tf.int32)
        begins = control.begins > 0
        *after, awaited = rounds.arrive(_open_round(state), group, wanted, control.live, ARRAYS, begins, self.fragments)
        update = self._after(after)
        return update._replace(state=update.state | {"sum": Scaled(control.weight, push)}, awaited=awaited)

    def expire(self, state: State, wanted: Any, control: Control) -> Update:
        """See `OuterOptimizer.expire`."""
        return self._after(rounds.expire(_open_round(state), wanted, ARRAYS))

    def change_round(self, state: State, change: Callable[..., Any], groups: Any, control: Control) -> Update:
        """See `OuterOptimizer.change_round`."""
        return self._after(change(_open_round(state), groups, control.live, ARRAYS))

    def _after(self, after: Sequence[Any]) -> Update:
        round_, ends = after
        state = {"pushed": round_.pushed, "absent": round_.absent, "round": round_.complete}
        return Update(None, state, round=tf.stack([round_.complete, tf.cast(ends, tf.int64)]))

    def end_round(self, parameters: Any, state: dict[str, Any], control: Control) -> None:
        """See `OuterOptimizer.end_round`. The same as `rounds.nesterov`.

        A round without momentum, as that of a group that trains alone, leaves the momentum to the rounds that have one.
        """
        total = state["sum"].read()
        rate, beta = tf.cast(control.rate, total.dtype), tf.cast(control.momentum, total.dtype)
        variables = {"var": parameters.handle(), "accum": state["momentum"].handle()}

        def step() -> bool:
            # m = beta * m + A; C -= -rate * (A + beta * m)
            tf.raw_ops.ResourceApplyMomentum(**variables, lr=-rate, grad=total, momentum=beta, use_nesterov=True)
            return True

        def add() -> bool:
            parameters.add(rate, total)
            return False

        with tf.control_dependencies([tf.cond(beta > 0, step, add)]):
            state["sum"].assign(tf.zeros_like(total))

    def baseline(self, parameters: Any, baseline: Any, pushed: Any, round_: Any, last_round: Any) -> Any:
        """See `OuterOptimizer.baseline`."""
        includes, is_new = round_[1] > 0, round_[0] > last_round

        def of_open_round() -> Any:
            return rounds.baseline(parameters, baseline, pushed, includes, is_new, ARRAYS)

        return tf.cond(includes, lambda: tf.identity(parameters), of_open_round)  # Usual, and without a pass over the values.


def _open_round(state: State) -> Round:
    return Round(state["pushed"], state["absent"], state["round"])


@dataclass(frozen=True)
class Elastic(OuterOptimizer):
    """e = rate * (w - C); C += e on the ps, w -= e on the worker. EASGD (arXiv 1412.6651).

    Attributes:
        rate: the moving rate.
    """

    rate: float

    pushes_parameters = True
    reads_parameters = True

    def update(self, parameters: Any, state: State, push: Any, control: Control) -> Update:
        """See `OuterOptimizer.update`. The reply is e."""
        pull = self.rate * (push - parameters)
        return Update(pull, reply=pull)


OUTER_OPTIMIZERS: dict[str, Callable[[Synchronization, int], OuterOptimizer]] = {
    "average": lambda options, groups: Average(),
    "nesterov": lambda options, groups: Nesterov(groups, options.quorum or 1, options.fragments),
    "delayed_nesterov": lambda options, groups: DelayedNesterov(),
    "elastic": lambda options, groups: Elastic(options.elastic_rate_of(groups)),
    "sum": lambda options, groups: Sum(),
}
"""Makes the outer optimizer of each name, for the options and the number of worker groups."""
