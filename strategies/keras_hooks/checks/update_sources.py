"""What the operations of a step that is tried out show of its updates, although its examples do not.

A trial (shard_check.py) does not see what replicas have of their own beside their examples: the states of their metrics, and
their random numbers.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.checks import metric_trial
from tfdist.strategies.keras_hooks.replicas.batch_sums import is_fixed
from tfdist.strategies.keras_hooks.replicas.same_rows import draws
from tfdist.strategies.keras_hooks.step_logs import resources

_ADDS, _SCALES, _KEEPS = ("AddV2", "AddN", "Sub"), ("Mul", "RealDiv"), ("Identity", "Cast", "Neg", "Reshape")

_MOST_OPERATIONS = 20
"""Operations to look at, one after the other."""


def what_shows(recorded: Sequence[tuple[str | None, Any]], model: Any) -> str | None:
    """Returns why replicas compute another update than one process; None for nothing."""
    if (name := _read_metric([value for _, value in recorded], model)) is not None:
        return (
            f"an update depends on the result of the metric {name}, and every replica counts its own examples in it. Keep what "
            "the step computes with in a variable (add_weight), of which the replicas get the mean after each step"
        )
    if any(_adds_noise(value) for name, value in recorded if name is None):
        return (
            "it adds random numbers to its gradients. Every replica draws its own, and the mean of these counts, which is "
            "smaller than what one process draws. Add them in update_step of an optimizer, where all replicas draw the same"
        )
    return None


def _read_metric(values: Iterable[Any], model: Any) -> str | None:
    """Returns the name of a metric from whose state one of these tensors is computed; None if there is none."""
    metrics = metric_trial.leaves(model)
    names = {name: metric.name for metric in metrics for v in metric.variables for name in resources([v.value])}
    found = resources(tf.nest.flatten(list(values), expand_composites=True)) if names else ()
    return next((str(names[name]) for name in found if name in names), None)


def _adds_noise(gradient: Any, left: int = _MOST_OPERATIONS) -> bool:
    """Returns whether a gradient is a sum of which one part surely is a random number, times a constant or a variable."""
    if not left or not tf.is_symbolic_tensor(gradient):
        return False
    operation = gradient.op
    if operation.type in _ADDS:
        return any(_is_noise(each) or _adds_noise(each, left - 1) for each in operation.inputs)
    return operation.type in _KEEPS and _adds_noise(operation.inputs[0], left - 1)


def _is_noise(value: Any) -> bool:
    for _ in range(_MOST_OPERATIONS):
        operation = value.op
        if draws(operation):
            return True
        operands = list(operation.inputs)
        if operation.type in (*_ADDS, *_SCALES):
            operands = [each for each in operands if not is_fixed(each)]
        elif operation.type not in _KEEPS:
            return False
        if len(operands if operation.type not in _KEEPS else operands[:1]) != 1:
            return False
        value = operands[0]
    return False
