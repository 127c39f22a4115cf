"""Keras' optimizers and losses where the replicas of a step update together.

Under TensorFlow's own strategies Keras 3 clips each replica's gradients before they are added up, cannot accumulate
gradients or overwrite weights by their averages (`merge_call` inside `cond`), and takes the mean of the replicas' means, which
is not the mean over the examples where the last batch does not divide. Inside a step function of tfdist (`replica.current()`)
gradients are added up first, so that the rest of the update is the same on every replica, and losses are weighted by each
replica's share of the examples. Everywhere else Keras' own code runs.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks import replica_context as replicas
from tfdist.strategies.private_api import (
    KerasVariable,
    LossScaleOptimizer,
    MultiOptimizer,
    TFOptimizer,
    in_stateless_scope,
    keras_loss_module,
)


def install() -> None:
    """Makes Keras' optimizers, losses and variables ask for the current replica. Calling it again does nothing."""
    if getattr(TFOptimizer, "_tfdist_installed", False):
        return
    TFOptimizer._tfdist_installed = True
    for owner in (TFOptimizer, LossScaleOptimizer, MultiOptimizer):
        owner.apply = _apply_reduced(owner.apply)
    TFOptimizer._all_reduce_sum_gradients = _unless_reduced(TFOptimizer._all_reduce_sum_gradients)
    keras_loss_module.scale_loss_for_distribution = _by_share(keras_loss_module.scale_loss_for_distribution, tf.multiply)
    keras_loss_module.unscale_loss_for_distribution = _by_share(
        keras_loss_module.unscale_loss_for_distribution, tf.math.divide_no_nan
    )
    KerasVariable._direct_assign = _noted(KerasVariable._direct_assign)


def _apply_reduced(apply: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply)
    def reduced_apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        replica = replicas.current()
        if replica is None or replica.reduced or not tf.distribute.get_replica_context():
            return apply(self, grads, trainable_variables)
        if replica.waiting is not None:
            if replica.waiting:
                raise ValueError(
                    "jit_compile=True compiles the gradients of a step and updates after it, so one step can have one update, "
                    "and this train_step applies gradients twice; leave jit_compile at 'auto'"
                )
            replica.waiting.append((self, list(grads), trainable_variables))
            return None
        replica.same.update(_ids_of_counters(self))
        grads = add_up(list(grads))
        replica.reduced = True
        try:
            return apply(self, grads, trainable_variables)
        finally:
            replica.reduced = False

    return reduced_apply


def with_inner(optimizer: Any) -> list[Any]:
    """An optimizer and those in it; of None, none."""
    inner = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", [])]
    return [each for each in [optimizer, *inner] if each is not None]


def _ids_of_counters(optimizer: Any) -> set[int]:
    """Variables that every replica counts on alike: Keras would broadcast the first replica's value."""
    return {id(each._iterations) for each in with_inner(optimizer) if hasattr(each, "_iterations")}


def add_up(gradients: list[Any]) -> list[Any]:
    """The sum over all replicas of each tensor or IndexedSlices; None stays None. One collective per dtype of dense tensors."""
    context, replica = tf.distribute.get_replica_context(), replicas.current()
    if replica is not None and replica.looping and any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        # Their length differs from step to step, and a collective in a loop has one shape.
        raise replicas.SparseInLoopError
    sums = list(gradients)
    kinds: dict[Any, list[int]] = {}
    for index, gradient in enumerate(gradients):
        if gradient is not None:
            kinds.setdefault(("sparse", index) if isinstance(gradient, tf.IndexedSlices) else gradient.dtype, []).append(index)
    for indices in kinds.values():
        values = [gradients[i] for i in indices]
        if not isinstance(values[0], tf.IndexedSlices):
            # Nobody differentiates the sum, and TensorFlow, which prepares for it, would walk back through the whole step.
            values = [tf.stop_gradient(value) for value in values]
        for index, total in zip(indices, context.all_reduce(tf.distribute.ReduceOp.SUM, values), strict=True):
            sums[index] = total
    return sums


def _unless_reduced(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(all_reduce)
    def all_reduce_once(self: Any, grads_and_vars: Any) -> Any:
        replica = replicas.current()
        return list(grads_and_vars) if replica is not None and replica.reduced else all_reduce(self, grads_and_vars)

    return all_reduce_once


def _by_share(original: Callable[..., Any], by: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scaled(value: Any) -> Any:
        replica = replicas.current()
        return original(value) if replica is None or replica.share is None else by(value, tf.cast(replica.share, value.dtype))

    return scaled


def _noted(direct_assign: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(direct_assign)
    def noted_assign(self: Any, value: Any) -> Any:
        replica = replicas.current()
        if replica is None or in_stateless_scope() or not tf.distribute.get_replica_context():
            return direct_assign(self, value)
        if id(self) in replica.same and isinstance(self._value, tf.distribute.DistributedValues):
            local = replica.strategy.experimental_local_results(self._value)[replica.index]
            return local.assign(tf.cast(value, local.dtype))
        replica.assigned[id(self)] = self
        return direct_assign(self, value)

    return noted_assign
