"""`jit_compile=True`: XLA compiles a replica's step up to the update, which needs the other replicas."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.inputs.batches import without_optionals
from tfdist.strategies.keras_hooks.replica_context import current
from tfdist.strategies.keras_hooks.same_rows import are_same


def compiled(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns `step`; with `jit_compile=True` a function that computes gradients in XLA and applies them afterwards.

    Args:
        model: the Keras model.
        step: a function of one replica's shard.
    """
    mesh = getattr(model.distribute_strategy.extended, "mesh", None)
    if model.jit_compile is not True or (mesh is not None and mesh.axis is not None):
        return step

    def compiled_step(shard: Any) -> Any:
        replica = current()
        assert replica is not None
        updates: list[Any] = []
        same_rows: list[list[bool]] = []

        def until_update(shard: Any) -> Any:
            logs = step(shard)
            same_rows[:] = [list(map(are_same, gradients)) for _, gradients, _ in updates]  # They are seen here only.
            return logs, [[gradient for gradient in gradients if gradient is not None] for _, gradients, _ in updates]

        replica.postponed = updates
        try:
            logs, computed = tf.function(until_update, jit_compile=True, autograph=False)(without_optionals(shard))
        finally:
            replica.postponed = None
        for (optimizer, gradients, variables), values, same in zip(updates, computed, same_rows, strict=True):
            values, replica.same_rows = iter(values), same
            optimizer.apply([None if gradient is None else next(values) for gradient in gradients], variables)
        replica.same_rows = None
        return logs

    return compiled_step
