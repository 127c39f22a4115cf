"""Keras' losses if the replicas of a step update together: equal to the loss of one process, also if Keras' own are not.

Under TensorFlow's strategies Keras divides the loss of each replica by the number of replicas. That is wrong for a batch that
does not divide, and for every loss that does not pass through Keras' reduction: a function that returns the mean of a batch, a
user's own `compute_loss`, a Keras loss inside `add_loss`, whose value is divided twice.

Inside a step function of tfdist no loss is scaled. Each replica computes the mean over its examples, and its gradients count by
its share of the examples (optimizer.py): the sum over the replicas is the gradient of the mean over the batch. What is no mean
over the examples of a replica is corrected here:

* a sum over the examples (`reduction="sum"`) is divided by the share, and so is a loss for each example that `compile` has
  (`reduction=None`), of which Keras' step takes the gradient of the sum;
* a mean over weights or unmasked entries counts by the replica's part of these;
* a loss function that returns one number for a batch, or one for each class, may be anything, and one may add such a number
  to those of the examples. Every replica computes it on the whole batch, unless it reads tensors that are no arguments: then
  it counts as a mean, and the trial of the step (checks/shard_check.py) tells whether it is one;
* `tf.nn`'s functions that scale losses divide by the number of replicas, or by the size of the batch, because the loops of
  TensorFlow add up the gradients of the replicas. Here they compute what they do in one process.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.attributes import replaced
from tfdist.strategies.keras_hooks.checks.own_code import is_known
from tfdist.strategies.keras_hooks.interface import hooks_of
from tfdist.strategies.keras_hooks.overridden_methods import replace_overridden
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.held_updates import HeldUpdates
from tfdist.strategies.keras_hooks.replicas.reduction import all_reduce_sum
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.keras_hooks.replicas.warned import warn_once
from tfdist.strategies.keras_hooks.replicas.whole_batch import (
    can_be_gathered,
    check_order,
    compares_examples,
    first_dimensions,
    gathered,
    has_number_for_each_class,
    is_of_batch,
    is_over_batch,
    reads_others,
)
from tfdist.strategies.private_api import keras_loss_module, patches


def install() -> None:
    """Makes Keras' losses compute for the current replica. Calling it again does nothing."""
    patches.SCALE_LOSS.patch(_unscaled)
    patches.UNSCALE_LOSS.patch(_per_example)
    patches.REDUCE_LOSS.patch(_reduce)
    patches.CALL_LOSS.patch(_call)
    patches.COMPILE_LOSS.patch(_call_compiled)
    patches.AVERAGE_LOSS.patch(_average_loss)
    patches.REGULARIZATION_LOSS.patch(_regularization_loss)


def _unscaled(original: Callable[..., Any], value: Any) -> Any:
    return original(value) if replica_context.current() is None and not _is_own_loop() else value


def _is_own_loop() -> bool:
    """Returns whether a loop of the user's own computes the loss in the scope of tfdist's strategy, but not on replicas."""
    return tf.distribute.in_cross_replica_context() and hooks_of(tf.distribute.get_strategy()) is not None


def _per_example(original: Callable[..., Any], value: Any) -> Any:
    """Returns what Keras adds to the mean that it shows."""
    replica = replica_context.with_share()
    if replica is None:
        return value if replica_context.current() is not None or _is_own_loop() else original(value)
    # `_call_compiled` has divided what has a loss for each example; within it nothing is divided yet.
    is_divided = value.shape.rank and not replica.in_compile_loss and not replica.has_loss_by_class
    return value * tf.cast(replica.share, value.dtype) if is_divided else value


def _reduce(
    original: Callable[..., Any],
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: Any = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    loss = original(values, sample_weight, mask, reduction, dtype)
    replica = replica_context.with_share()
    if replica is not None:
        replica.reductions += 1
    if replica is None or replica.has_whole_batch:
        return loss
    if is_of_batch(values, replica.rows_of_function) or compares_examples(values, replica.arguments):
        replica.has_scalar_loss = True
        return loss
    if reduction in ("none", None):
        return loss  # A loss for each example: what the step makes of them counts as any other loss.
    if replica.recorded is not None:  # Weights, masks and sums count right below; to the trial they would look like faults.
        weight = _weight_of(values, sample_weight, mask)
        return tf.reduce_mean(values if weight is None else values * tf.cast(weight, values.dtype))
    if reduction == "sum":
        return tf.math.divide_no_nan(loss, tf.cast(replica.share, loss.dtype))
    weight = mask if reduction != "mean_with_sample_weight" else _weight_of(values, sample_weight, mask)
    return loss if weight is None else loss * _relative_weight(replica, weight, loss.dtype)


def _weight_of(values: Any, sample_weight: Any, mask: Any) -> Any:
    if sample_weight is None:
        return mask
    weight = tf.cast(sample_weight, values.dtype)
    if mask is None:
        return weight
    mask, weight = keras_loss_module.squeeze_or_expand_to_same_rank(tf.cast(mask, values.dtype), weight)
    return weight * mask


def _relative_weight(replica: Replica, weight: Any, dtype: Any) -> Any:
    """Returns the replica's part of the whole weight, divided by its share of the examples."""
    if replica.postponed is not None:
        _warn_once(
            replica,
            "jit_compile=True: XLA cannot add up masks and weights over the replicas; the loss is the mean of their means",
        )
        return tf.ones([], dtype)
    own = tf.where(replica.share > 0, tf.reduce_sum(tf.cast(weight, tf.float32)), 0.0)
    total = all_reduce_sum([own])[0]
    return tf.cast(tf.math.divide_no_nan(own, total * replica.share), dtype)


def _call(original: Callable[..., Any], loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    replica = replica_context.with_share()
    if replica is None or replica.has_whole_batch:
        return original(loss, y_true, y_pred, sample_weight)
    held, rows = _held_updates(loss, y_true, y_pred, replica), first_dimensions(y_true, y_pred)
    arguments = () if _is_known(loss) else (y_true, y_pred)
    with replaced(replica, has_scalar_loss=False, rows_of_function=rows, arguments=arguments), held or contextlib.nullcontext():
        value = original(loss, y_true, y_pred, sample_weight)
        is_scalar = replica.has_scalar_loss
    is_of_batch = is_scalar or is_over_batch(loss, y_pred) or _is_by_class(loss, y_true, y_pred)
    if not is_of_batch or reads_others(value, (y_true, y_pred, sample_weight), replica):
        return value if held is None or held.assign() else original(loss, y_true, y_pred, sample_weight)
    return _of_whole_batch(original, loss, y_true, y_pred, sample_weight, value, replica)


def _held_updates(loss: Any, y_true: Any, y_pred: Any, replica: Replica) -> HeldUpdates | None:
    """Returns a scope for a loss of the user's that may have to be computed again, on the whole batch; else None.

    In a trial, what such a loss assigns counts right below, as the loss does.
    """
    is_again = replica.postponed is None and can_be_gathered(y_true, y_pred)
    return HeldUpdates() if is_again and not _is_known(loss) else None


def _is_known(loss: Any) -> bool:
    return is_known(getattr(loss, "fn", type(loss)))


def _is_by_class(loss: Any, y_true: Any, y_pred: Any) -> bool:
    """Returns whether a loss of the user's has as many numbers for classes as the replica has rows."""
    return not _is_known(loss) and has_number_for_each_class(loss.call, y_true, y_pred)


def _of_whole_batch(
    original: Callable[..., Any], loss: Any, y_true: Any, y_pred: Any, sample_weight: Any, value: Any, replica: Replica
) -> Any:
    """Returns a loss that is one number for a batch, or compares the examples, computed on the whole batch.

    `value` is what `original` has returned for the batch of this replica.
    """
    if replica.recorded is not None:
        return 0.0 * value  # It may be anything, and counts right below.
    weight = None if sample_weight is None else tf.convert_to_tensor(sample_weight)
    if replica.postponed is not None or not can_be_gathered(y_true, y_pred):
        _warn_once(
            replica,
            f"the loss {loss.name} returns one number for a batch, or one for each class, or compares the examples, which the "
            "replicas cannot compute together here; it counts as a mean over the examples. Return one loss per example instead",
        )
        return value
    if replica.looping:
        raise replica_context.NotInLoopError
    local, all_rows = (y_true, y_pred), gathered((y_true, y_pred), replica, loss.dtype)
    if weight is not None and weight.shape.rank:
        weight = gathered(weight, replica, loss.dtype)
    with replaced(replica, has_whole_batch=True):
        of_batch = original(loss, *all_rows, weight)
        check_order(
            of_batch, lambda y_true, y_pred: original(loss, y_true, y_pred), local, all_rows, replica, f"the loss {loss.name}"
        )
    if replica.in_compile_loss and of_batch.shape.rank:
        if (weight is None or not weight.shape.rank) and not _has_mask(y_true, y_pred):
            replica.has_loss_by_class = True
            return of_batch
        # It has a number for each example. Keras adds it to those of other outputs, of which a replica has its own examples.
        return tf.reduce_mean(of_batch) * tf.ones_like(value)
    return of_batch


def _has_mask(*nested: Any) -> bool:
    return any(keras_loss_module.backend.get_keras_mask(tensor) is not None for tensor in tf.nest.flatten(nested))


def adopt_own_calls(losses: Any) -> None:
    """Makes losses whose class overrides `__call__`, instead of `call`, count on several replicas.

    Args:
        losses: losses as `compile` takes them, nested.
    """
    for loss in tf.nest.flatten(losses):
        if isinstance(loss, keras.losses.Loss):
            replace_overridden(type(loss), "__call__", _call_own)


def _call_own(original: Callable[..., Any], loss: Any, y_true: Any, y_pred: Any, *weights: Any, **others: Any) -> Any:
    replica = replica_context.with_share()
    if "sample_weight" in others and not weights:
        weights = (others.pop("sample_weight"),)
    if replica is None or replica.has_whole_batch or others or len(weights) > 1:  # Keras gives at most one.
        return original(loss, y_true, y_pred, *weights, **others)
    before = replica.reductions
    held = _held_updates(loss, y_true, y_pred, replica)
    with held or contextlib.nullcontext():
        value = tf.convert_to_tensor(original(loss, y_true, y_pred, *weights))
    is_counted = value.shape.rank or replica.reductions > before  # Keras has reduced it, and counts it rightly.
    if is_counted or reads_others(value, (y_true, y_pred, weights), replica):
        return value if held is None or held.assign() else original(loss, y_true, y_pred, *weights)

    def compute(loss: Any, y_true: Any, y_pred: Any, weight: Any = None) -> Any:
        return original(loss, y_true, y_pred, *([weight] if weights else ()))

    return _of_whole_batch(compute, loss, y_true, y_pred, weights[0] if weights else None, value, replica)


def _call_compiled(original: Callable[..., Any], loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    """Divides the losses of `compile` that have no reduction by the share, because Keras' step takes gradients of their sum.

    It does not divide a sum over classes, which has as many numbers on every replica.
    """
    replica = replica_context.with_share()
    if replica is None:
        return original(loss, y_true, y_pred, sample_weight)
    replica.has_loss_by_class = False
    with replaced(replica, in_compile_loss=True):
        value = original(loss, y_true, y_pred, sample_weight)
    if value is None or not tf.convert_to_tensor(value).shape.rank:
        return value
    if replica.recorded is not None:
        return tf.reduce_mean(value)
    return value if replica.has_loss_by_class else tf.math.divide_no_nan(value, tf.cast(replica.share, value.dtype))


def _average_loss(
    original: Callable[..., Any], per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
) -> Any:
    replica = replica_context.with_share()
    if replica is None:
        return original(per_example_loss, sample_weight, global_batch_size)
    if global_batch_size is None or replica.recorded is not None:  # A trial has another batch. It counts right below.
        return original(per_example_loss, sample_weight, tf.shape(per_example_loss)[0])
    loss = original(per_example_loss, sample_weight, global_batch_size)
    return tf.math.divide_no_nan(loss, tf.cast(replica.share, loss.dtype))


def _regularization_loss(original: Callable[..., Any], regularization_loss: Any) -> Any:
    return original(regularization_loss) if replica_context.with_share() is None else tf.reduce_sum(regularization_loss)


def _warn_once(replica: Replica, message: str) -> None:
    if replica.index == 0:
        warn_once("%s", message)
