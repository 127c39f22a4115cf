"""Averages that are never negative, such as moving variances: pushes of several groups must not bring them below zero.

Groups take the mean of what no optimizer trains: each adds its share of its progress. That goes wrong where a group begins from
a value to which the others have not all pushed, because it makes their progress once more. With two groups, a moving variance
that falls from 1 to 0.01 within a sync period is 0.5 after the push of the first, 0.01 after that of the second, and -0.24
after the next push of the first, which had pulled 0.5. `evaluate` would compute its square root.

So a push moves a value, of which neither the global parameter nor the local replica is negative, at most halfway from the
lesser of the two to zero. What would move it farther moves the global parameter toward the local replica instead. If the
progress of a group begins from the present global parameter, the mean lies between the two, and this never happens.

These variables are sent as float32 with every compression: others in the same message decide how a value is rounded.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.hogwild.synchronization.control import Control
from tfdist.strategies.hogwild.synchronization.local_variable import LocalVariable
from tfdist.strategies.hogwild.synchronization.outer_optimizers import Nesterov, OuterOptimizer, State, Update


def mark(variables: Iterable[LocalVariable]) -> None:
    """Sets `is_nonnegative` of variables of which groups take the mean."""
    for variable in variables:
        if variable.block is None:
            variable.is_nonnegative = bool(np.all(variable.value_on_chief() >= 0))


def optimizer_of(optimizer: OuterOptimizer) -> OuterOptimizer:
    """Returns the outer optimizer of these variables, beside `optimizer` for the weights."""
    if optimizer.pushes_parameters:
        return optimizer  # It moves the global parameters toward the local replica.
    if isinstance(optimizer, Nesterov):
        return MeanOfRounds(optimizer.groups, optimizer.quorum, optimizer.fragments)
    return Mean()


class Mean(OuterOptimizer):
    """C += weight * d, or C += weight * (w - C) where that would bring a value near or below zero."""

    sends_replica = True
    reads_parameters = True

    def update(self, parameters: Any, state: State, push: Any, control: Control) -> Update:
        """See `OuterOptimizer.update`."""
        weight = tf.cast(control.weight, push.dtype)
        least = tf.minimum(parameters, control.replica)
        instead = control.replica - parameters
        return Update(weight * tf.where(_goes_too_far(parameters + weight * push, least), instead, push))


class MeanOfRounds(Nesterov):
    """C += A at the end of a round, or C = the least of C and all w of the round where that would bring it near or below zero.

    Pushes that come late, in the next round, begin from another value than the others.
    """

    sends_replica = True

    def init(self, shape: Any, dtype: tf.DType) -> State:
        """See `Nesterov.init`. Adds the least of the local replicas in the open round, [n]."""
        return {**super().init(shape, dtype), "least": tf.fill(shape, tf.constant(float("inf"), dtype))}

    def update(self, parameters: Any, state: State, push: Any, control: Control) -> Update:
        """See `OuterOptimizer.update`."""
        update = super().update(parameters, state, push, control)
        return update._replace(state=update.state | {"least": tf.minimum(state["least"], control.replica)})

    def end_round(self, parameters: Any, state: dict[str, Any], control: Control) -> None:
        """See `OuterOptimizer.end_round`. The outer rates are 1 and 0."""
        before, total = parameters.read(), state["sum"].read()
        least = tf.minimum(before, state["least"].read())
        after = before + total
        parameters.assign(tf.where(_goes_too_far(after, least), least, after))
        state["sum"].assign(tf.zeros_like(total))
        state["least"].assign(tf.fill(tf.shape(total), tf.constant(float("inf"), total.dtype)))


def _goes_too_far(after: Any, least: Any) -> Any:
    return (least >= 0) & (after < least / 2)
