"""Lets sums over the examples of a batch count in full as added losses, and warns of those that replicas count too little.

Which layers add sums a trial of the step finds (added_losses.py). Where there was none, or the model was evaluated before, the
operations that compute a loss tell that it is a sum, and a warning says that it counts too little.
"""

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas import added_losses, replica_context
from tfdist.strategies.keras_hooks.replicas.function_arguments import operations_behind
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.keras_hooks.replicas.warned import is_first_warning
from tfdist.strategies.private_api import KerasVariable, patches

_ADDS = ("AddV2", "AddN", "Sub")
_KEEPS_A_SUM = (*_ADDS, "Identity", "Cast", "Reshape", "Squeeze", "Neg", "Mul", "RealDiv", "Sum", "StopGradient")
"""Operations after which a sum over examples still is one, if all but one of the operands do not depend on the batch."""

_FIXED = ("Const", "ReadVariableOp")
REDUCTIONS = ("Mean", "Sum", "Max", "Min", "Prod")

_MOST_OPERATIONS = 100
"""Operations to look at. A loss that is computed in more of them is not known to be a sum."""

_log = logging.getLogger("tfdist")


def install() -> None:
    """Makes the losses that layers add count for the current replica. Calling it again does nothing."""
    patches.ADD_LOSS.patch(_add_loss)
    patches.SUM_ADDED_LOSS.patch(_sum_added_loss)


def _add_loss(original: Callable[..., Any], layer: Any, loss: Any) -> Any:
    if (replica := replica_context.with_share()) is None:
        return original(layer, loss)
    added_losses.keep_by_replica(layer)
    if replica.recorded is not None:
        losses = added_losses.tried_out(replica, layer, loss)
        replica.in_full += losses if id(layer) in replica.as_means else []
        return original(layer, losses)
    if added_losses.is_sum(layer):
        losses = added_losses.in_full(replica, loss)
        replica.in_full += losses
        return original(layer, losses)
    if _has_sum(loss, replica.rows) and is_first_warning(layer, "adds a sum"):
        _log.warning(
            "the layer %s adds a sum over its batch as a loss. Every replica adds the sum over its own examples, and the mean "
            "of these sums counts, which is less than the sum in one process. Add a mean over the examples instead",
            layer.name,
        )
    return original(layer, loss)


def _sum_added_loss(original: Callable[..., Any], model: Any, loss: Any) -> Any:
    """Returns the sum that Keras takes of a loss for each example, so that it counts in full without a trial, too."""
    total, replica = original(model, loss), replica_context.with_share()
    if replica is None or any(each is loss for each in replica.in_full) or not is_for_each_example(loss, replica.rows):
        return total
    part = replica.share if replica.recorded is None else replica.examples  # In a trial it has to look like a mean.
    return tf.math.divide_no_nan(total, tf.cast(part, total.dtype))


def gradients_in_full(target: Any, sources: Any, given: Any) -> Any:
    """Returns the `output_gradients` of a tape with which sums over the examples count in full, and `given` for other targets.

    Of a loss for each example TensorFlow takes the gradient of its sum. A trial has to find that the targets are sums, and that
    the step uses them: it may divide by the number of examples itself.

    Args:
        target: what the tape differentiates, nested tensors.
        sources: by what. The trial tells targets apart by the first variable.
        given: the `output_gradients` of the program: a number for each target; None stands for ones.
    """
    replica, first = replica_context.with_share(), next(iter(tf.nest.flatten(sources)), None)
    targets = tf.nest.flatten(target)
    weights = [None] * len(targets) if given is None else tf.nest.flatten(given)
    if replica is None or not isinstance(first, KerasVariable) or len(weights) != len(targets):
        return given
    in_full = [_of_target(replica, first, *each) for each in zip(targets, weights, strict=True)]
    if all(each is None for each in in_full):
        return given
    return [weight if each is None else each for each, weight in zip(in_full, weights, strict=True)]


def _of_target(replica: Replica, first: Any, target: Any, weight: Any) -> Any:
    """Returns the gradient of one target with which it counts in full; None if it is no sum over the examples."""
    is_number = tf.is_symbolic_tensor(target) and target.shape.rank == 0
    if not is_number and not is_for_each_example(target, replica.rows):
        return None
    weight = tf.ones_like(target) if weight is None else tf.cast(weight, target.dtype)
    if replica.recorded is None:
        is_sum = added_losses.has_gradients_of_sums(replica.model, first)
        return added_losses.in_full(replica, weight)[0] if is_sum else None
    added_losses.tried_out(replica, first, target * weight)
    return weight / tf.cast(replica.examples, target.dtype) if id(first) in replica.as_means else None


def is_for_each_example(loss: Any, rows: int | None) -> bool:
    """Returns whether a tensor surely has a row for each example; one of a step that runs eagerly, as many rows as examples.

    Args:
        loss: the tensor.
        rows: the number of examples; None if it is not known while the function is traced.
    """
    if tf.executing_eagerly():  # There are no operations to look at.
        return isinstance(loss, tf.Tensor) and bool(loss.shape.rank) and loss.shape[0] == rows
    if not tf.is_symbolic_tensor(loss) or not loss.shape.rank or loss.shape[0] != rows or is_fixed(loss):
        return False
    seen, waiting = set(), [loss.op]
    while waiting:  # Where did its first dimension come from? A number for each class may be as long.
        operation = waiting.pop()
        seen.add(operation)
        if (operation.type in REDUCTIONS and removes_first(operation)) or len(seen) > _MOST_OPERATIONS:
            return False
        if operation.type not in REDUCTIONS:
            alike = (each for each in operation.inputs if each.shape.rank == loss.shape.rank and not is_fixed(each))
            waiting += {each.op for each in alike} - seen
    return True


def _has_sum(loss: Any, rows: int | None) -> bool:
    return any(isinstance(value, tf.Tensor) and is_sum_over_examples(value, rows) for value in tf.nest.flatten(loss))


def is_sum_over_examples(loss: Any, rows: int | None, left: int = _MOST_OPERATIONS) -> bool:
    """Returns whether a tensor of a function that is traced surely is a sum along the first dimension of a batch.

    A sum that is divided by the number of examples is none.

    Args:
        loss: the tensor.
        rows: the number of examples; None if it is not known while the function is traced.
        left: how many operations to look at, one after the other.
    """
    if tf.executing_eagerly() or not left:
        return False
    operation = loss.op
    if operation.type == "Sum" and _is_along_examples(operation, rows):
        return True
    if operation.type not in _KEEPS_A_SUM or _divides_by_examples(operation, rows):
        return False
    operands = [value for value in operation.inputs if not is_fixed(value)]
    if operation.type in _ADDS:
        return any(is_sum_over_examples(value, rows, left - 1) for value in operands)
    return len(operands) == 1 and is_sum_over_examples(operands[0], rows, left - 1)


def _divides_by_examples(operation: Any, rows: int | None) -> bool:
    """Returns whether an operation divides by the number of examples or of their values, which may be a constant."""
    if operation.type != "RealDiv" or not rows:
        return False
    divisor = tf.get_static_value(operation.inputs[1])
    return divisor is not None and bool((divisor % rows == 0).all())


def is_fixed(value: Any) -> bool:
    """Returns whether a tensor is made of constants and variables only."""
    for number, operation in enumerate(operations_behind([value], lambda each: each.type not in _FIXED)):
        if operation.type not in _FIXED and (not operation.inputs or number >= _MOST_OPERATIONS):
            return False
    return True


def _is_along_examples(reduction: Any, rows: int | None) -> bool:
    """Returns whether a reduction removes the first dimension, and that is the dimension of the examples."""
    values = reduction.inputs[0]
    is_of_batch = removes_first(reduction) and values.shape[0] == rows and not is_fixed(values)
    return is_of_batch and not _is_reduced(values)


def removes_first(reduction: Any) -> bool:
    """Returns whether a reduction removes the first dimension of its operand."""
    values, axes = reduction.inputs
    axes = tf.get_static_value(axes)
    return bool(values.shape.rank) and axes is not None and any(axis in (0, -values.shape.rank) for axis in axes.reshape(-1))


def _is_reduced(values: Any) -> bool:
    """Returns whether an operation with one operand removed the examples before, as in a sum of means over the examples."""
    for _ in range(_MOST_OPERATIONS):
        operation = values.op
        if operation.type in REDUCTIONS and removes_first(operation):
            return True
        operands = [value for value in operation.inputs if not is_fixed(value)]
        if len(operands) != 1:
            return False
        values = operands[0]
    return False
