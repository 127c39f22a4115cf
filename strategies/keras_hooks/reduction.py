"""Sums over the replicas that compute a step together."""

from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks import replica_context


def all_reduce_sum(gradients: list[Any]) -> list[Any]:
    """Returns the sum of each tensor or IndexedSlices over all replicas, by one collective per dtype of dense tensors.

    None stays None. Every replica has to call it, with tensors of the same shapes.
    """
    context, replica = tf.distribute.get_replica_context(), replica_context.current()
    if replica is not None and replica.looping and any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        # Their length differs from step to step, and a collective in a loop has one shape.
        raise replica_context.NotInLoopError
    sums = list(gradients)
    kinds: dict[Any, list[int]] = {}
    for index, gradient in enumerate(gradients):
        if gradient is not None:
            kinds.setdefault(("sparse", index) if isinstance(gradient, tf.IndexedSlices) else gradient.dtype, []).append(index)
    for indices in kinds.values():
        values = [gradients[i] for i in indices]
        if not isinstance(values[0], tf.IndexedSlices):
            # Nothing differentiates the sum; without this TensorFlow walks back through the whole step to prepare for it.
            values = [tf.stop_gradient(value) for value in values]
        for index, total in zip(indices, context.all_reduce(tf.distribute.ReduceOp.SUM, values), strict=True):
            sums[index] = total
    return sums
