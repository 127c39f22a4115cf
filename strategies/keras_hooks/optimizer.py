"""Keras' optimizers for replicas that update together.

Under TensorFlow's own strategies Keras 3 clips each replica's gradients before they are added up, and it can neither accumulate
gradients nor overwrite weights by their averages (`merge_call` inside `cond`). Inside a step function of tfdist
(`replica_context.current()`), and in `strategy.run` of a data-parallel strategy, gradients are added up first. The rest of the
update is then the same on every replica. Everywhere else Keras' own code runs.
"""

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.attributes import replaced
from tfdist.strategies.keras_hooks import kept_tensors, losses, metric_updates, own_loops, step_build, update_kernels, variables
from tfdist.strategies.keras_hooks.build_scope import strategy_in_own_loop
from tfdist.strategies.keras_hooks.checks.own_code import owner_of
from tfdist.strategies.keras_hooks.gradient_sums import pieces_of_all, sums_of
from tfdist.strategies.keras_hooks.held_optimizers import ids_of_counters, variables_of, with_inner
from tfdist.strategies.keras_hooks.interface import hooks_of, is_data_parallel, layout_of
from tfdist.strategies.keras_hooks.overridden_methods import replace_overridden
from tfdist.strategies.keras_hooks.replicas import batch_normalization, batch_sums, decibels, own_values, replica_context
from tfdist.strategies.keras_hooks.replicas.overwritten import is_overwritten, with_largest
from tfdist.strategies.keras_hooks.replicas.reduction import all_reduce_sum
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.private_api import apply_scaled, patches

ELEMENTWISE = frozenset(
    (
        keras.optimizers.SGD,
        keras.optimizers.RMSprop,
        keras.optimizers.Adam,
        keras.optimizers.AdamW,
        keras.optimizers.Adadelta,
        keras.optimizers.Adagrad,
        keras.optimizers.Adamax,
        keras.optimizers.Nadam,
        keras.optimizers.Ftrl,
        keras.optimizers.Lion,
    )
)
"""Optimizers that update each element by itself. Lamb, Muon, Adafactor and unknown optimizers need the whole variable."""


def is_elementwise(optimizer: Any) -> bool:
    """Returns whether an optimizer updates each element by itself, as one of `ELEMENTWISE` or with the `update_step` of one."""
    return owner_of(type(optimizer), "update_step") in ELEMENTWISE


def install() -> None:
    """Makes optimizers, losses and variables of Keras ask for the current replica. Calling it again does nothing."""
    for apply in patches.APPLY.values():
        apply.patch(_apply)
    patches.SCALE_BY_OPTIMIZER.patch(_scale_loss)
    patches.SCALE_BY_FACTOR.patch(_scale_by_factor)
    patches.APPLY_SCALED.patch(_apply_scaled)
    patches.ALL_REDUCE_GRADIENTS.patch(_all_reduce_gradients)
    losses.install()
    batch_normalization.install()
    batch_sums.install()
    decibels.install()
    kept_tensors.install()
    metric_updates.install()
    update_kernels.install()
    variables.install()


def _apply(original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    if step_build.is_building():
        return None
    grads, trainable_variables = list(grads), None if trainable_variables is None else list(trainable_variables)
    replica = replica_context.current()
    if replica is None:
        return own_loops.apply(original, optimizer, grads, trainable_variables)
    if replica.recorded is not None:
        _record(replica, optimizer, grads, trainable_variables)
        return None
    if replica.reduced or not tf.distribute.get_replica_context():
        return original(optimizer, grads, trainable_variables)
    if replica.unbuilt is not None and not optimizer.built:
        replica.unbuilt.append((optimizer, trainable_variables))
        return None
    if trainable_variables is not None and not optimizer.built and not tf.executing_eagerly():
        # Adafactor makes variables of numbers, which are in the loop of steps otherwise, and not to be had outside of it.
        with tf.init_scope(), keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(trainable_variables)
    if replica.postponed is not None:
        _postpone(replica, functools.partial(_apply, original, optimizer), optimizer, grads, trainable_variables)
        return None
    _note_branch(replica)
    return _apply_sums(replica, original, optimizer, grads, trainable_variables)


def _record(replica: Replica, optimizer: Any, grads: list[Any], trainable_variables: list[Any] | None) -> None:
    """Notes what a step that is tried out would update."""
    assert replica.recorded is not None
    pairs = itertools.zip_longest(grads, variables_of(optimizer, trainable_variables))
    recorded = [(None, gradient) for gradient, v in pairs if gradient is not None and not is_overwritten(v)]
    replica.recorded += recorded
    replica.sizes_of_updates.append(len(recorded))
    if replica.unbuilt is not None and not optimizer.built and trainable_variables is not None:
        replica.unbuilt.append((optimizer, trainable_variables))


def _postpone(
    replica: Replica, apply: Callable[..., Any], optimizer: Any, grads: list[Any], trainable_variables: list[Any] | None
) -> None:
    """Leaves an update to the time after the compiled part of a step."""
    assert replica.postponed is not None
    if replica.postponed:
        raise ValueError(
            "jit_compile=True compiles the gradients of a step and updates after it, so one step can have one update, "
            "and this train_step applies gradients twice; leave jit_compile at 'auto'"
        )
    replica.postponed.append((apply, (optimizer, grads, trainable_variables)))
    replica.before_update = len(tf.compat.v1.get_default_graph().get_operations())


def _note_branch(replica: Replica) -> None:
    """Notes the branch or loop of the step that is traced, if any. Raises ValueError where replicas cannot add up in it."""
    if tf.executing_eagerly() or replica.graph in (None, graph := tf.compat.v1.get_default_graph()):
        return
    replica.branches.append(graph)
    layout = layout_of(replica.strategy)
    if replica.share is not None and (layout is None or len(layout.local) > 1):
        raise ValueError(
            "the step applies gradients in a tf.cond, an `if` on a tensor, or a loop of TensorFlow, where the replicas of "
            "a task or worker group cannot add them up. Update in every step, or have one replica in each"
        )


def _apply_sums(
    replica: Replica, original: Callable[..., Any], optimizer: Any, grads: list[Any], trainable_variables: list[Any] | None
) -> Any:
    """Applies the sums of the gradients over the replicas, on each of them."""
    updated = variables_of(optimizer, trainable_variables)
    replica.same.update(ids_of_counters(optimizer))
    updates = zip(grads, updated, strict=False)
    replica.updated.update(id(variable) for gradient, variable in updates if gradient is not None)  # Keras leaves others out.
    share = None if id(optimizer) in replica.weighted else replica.share
    if replica.agree is not None:
        replica.agree(f"updates with {optimizer.name}")
    own_values.take_means(replica, updated)
    pieces = replica.pieces or pieces_of_all(optimizer, grads, trainable_variables)
    weighted = functools.partial(_weighted, share=share, is_real=replica.share > 0 if replica.may_be_empty else None)
    sums = sums_of(pieces, lambda flat, same: all_reduce_sum([weighted(piece) for piece in flat], same))
    if replica.share is not None:
        sums = with_largest(sums, grads, updated)
    with replaced(replica, reduced=True):
        return original(optimizer, sums, trainable_variables)


def adopt_own_updates(optimizers: Iterable[Any]) -> None:
    """Makes optimizers whose class overrides `apply` or `apply_gradients` get sums of gradients over replicas that do the same.

    What they compute with gradients may not be what replicas together compute with those of their shards, as if they clip.
    Those of worker groups get the gradients of a shard: on a ps, code of the user's may change what several groups share.
    """
    for optimizer in optimizers:
        for name, replacement in (("apply", _apply), ("apply_gradients", _apply_pairs)):
            replace_overridden(type(optimizer), name, functools.partial(_if_data_parallel, replacement))


def _if_data_parallel(
    replacement: Callable[..., Any], original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any
) -> Any:
    is_here = is_data_parallel(optimizer._distribution_strategy)
    return replacement(original, optimizer, *args, **kwargs) if is_here else original(optimizer, *args, **kwargs)


def _apply_pairs(original: Callable[..., Any], optimizer: Any, grads_and_vars: Any) -> Any:
    def apply(optimizer: Any, grads: Any, trainable_variables: Any) -> Any:
        return original(optimizer, list(zip(grads, trainable_variables, strict=True)))

    pairs = list(grads_and_vars)
    return _apply(apply, optimizer, [gradient for gradient, _ in pairs], [variable for _, variable in pairs])


def _scale_loss(original: Callable[..., Any], optimizer: Any, loss: Any) -> Any:
    if not optimizer.built and tf.inside_function() and strategy_in_own_loop() is not None:
        raise ValueError(
            f"{optimizer.name} is not built, and the function that calls scale_loss would keep its first scale for ever; call "
            "optimizer.build(model.trainable_variables) inside `with strategy.scope():` before the first step"
        )
    return original(optimizer, _by_share(optimizer, loss))


def _scale_by_factor(original: Callable[..., Any], optimizer: Any, loss: Any) -> Any:
    return original(optimizer, loss if optimizer.loss_scale_factor is None else _by_share(optimizer, loss))


def _apply_scaled(original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
    """Applies gradients in a loop on the chief as in one process. Keras refuses it, because replicas could do so there."""
    hooks = hooks_of(strategy := tf.distribute.get_strategy())
    is_on_chief = hooks is not None and not is_data_parallel(strategy) and tf.distribute.in_cross_replica_context()
    (apply_scaled if is_on_chief else original)(optimizer, grads, trainable_variables)


def _by_share(optimizer: Any, loss: Any) -> Any:
    """Returns a loss that is to be scaled as the replica's part of the loss of the batch.

    Its gradients then count in full. In float16 those of the mean over a shard would overflow at a smaller scale than those of
    the mean over the batch: by as many times smaller as there are replicas.
    """
    replica = replica_context.with_share()
    if replica is None or replica.recorded is not None:
        return loss
    replica.weighted.update(map(id, with_inner(optimizer)))  # A step may unscale gradients itself, for the inner optimizer.
    loss = tf.convert_to_tensor(loss)
    return loss * tf.cast(replica.share, loss.dtype)


def _all_reduce_gradients(original: Callable[..., Any], optimizer: Any, grads_and_vars: Any) -> Any:
    pairs, replica = list(grads_and_vars), replica_context.current()
    if replica is not None and replica.reduced:
        return pairs
    if any(isinstance(gradient, tf.experimental.ExtensionType) for gradient, _ in pairs):  # Sharded, in a loop of the user.
        sums = all_reduce_sum([gradient for gradient, _ in pairs])
        return [(total, variable) for total, (_, variable) in zip(sums, pairs, strict=True)]
    return original(optimizer, pairs)


def _weighted(gradient: Any, share: Any, is_real: Any = None) -> Any:
    """Returns a gradient of the mean over a replica's examples as its part of the gradient of the mean over the batch.

    Args:
        gradient: a tensor, IndexedSlices or None.
        share: the replica's part of the examples; None if the gradient counts in full already.
        is_real: whether the replica has examples; None if it surely has.
    """
    if gradient is None or (share is None and is_real is None):
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values = _weighted(gradient.values, share, is_real)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    gradient = gradient if share is None else gradient * tf.cast(share, gradient.dtype)
    if is_real is None or isinstance(gradient, tf.experimental.ExtensionType):  # A sharded one stays in its parts.
        return gradient
    return tf.where(is_real, gradient, tf.zeros_like(gradient))
