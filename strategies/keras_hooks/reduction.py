"""Sums over the replicas that compute a step together."""

from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks import replica_context
from tfdist.strategies.private_api import batch_reduce_destination


def all_reduce_sum(gradients: list[Any]) -> list[Any]:
    """Returns the sum of each tensor or IndexedSlices over all replicas; dense tensors of a dtype travel together.

    None stays None, and a tensor in parts (`model_parallel`) stays in parts. Every replica has to call it, with tensors of the
    same shapes.
    """
    context, replica = tf.distribute.get_replica_context(), replica_context.current()
    is_split = getattr(context.strategy.extended, "mesh", None) is not None
    if is_split and context.num_replicas_in_sync == 1:
        return list(gradients)
    if any(isinstance(gradient, tf.experimental.ExtensionType) for gradient in gradients):
        sums = all_reduce_sum(tf.nest.flatten([_pieces(gradient) for gradient in gradients]))
        sums = tf.nest.pack_sequence_as([_pieces(gradient) for gradient in gradients], sums)
        return [
            gradient.with_parts(total) if isinstance(gradient, tf.experimental.ExtensionType) else total
            for gradient, total in zip(gradients, sums, strict=True)
        ]
    if replica is not None and replica.looping and any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        # Their length differs from step to step, and a collective in a loop has one shape.
        raise replica_context.NotInLoopError
    sums = list(gradients)
    kinds: dict[Any, list[int]] = {}
    for index, gradient in enumerate(gradients):
        if gradient is not None:
            kinds.setdefault(("sparse", index) if isinstance(gradient, tf.IndexedSlices) else gradient.dtype, []).append(index)
    for indices in kinds.values():
        for index, total in zip(indices, _sums(context, [gradients[i] for i in indices]), strict=True):
            sums[index] = total
    return sums


def _pieces(gradient: Any) -> Any:
    return list(gradient.parts) if isinstance(gradient, tf.experimental.ExtensionType) else gradient


def _sums(context: Any, values: list[Any]) -> list[Any]:
    """Does what `context.all_reduce` does, without a gradient: nothing differentiates the sums.

    For its gradient TensorFlow would walk back through the whole step, and it registers the gradient in a table from which
    nothing is ever removed: the function, its graph and the variables of the model would exist until the process ends.
    """
    if isinstance(values[0], tf.IndexedSlices):
        return list(context.all_reduce(tf.distribute.ReduceOp.SUM, values))
    values = [tf.stop_gradient(value) for value in values]

    def merge(strategy: Any, *merged: Any) -> Any:
        pairs = [(value, batch_reduce_destination(value)) for value in merged]
        return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)

    extended = context.strategy.extended
    in_buckets = getattr(extended, "sums_in_buckets", None)
    if extended._use_merge_call():
        sums = context.merge_call(merge, args=values)
    elif in_buckets is not None:
        sums = in_buckets(values)
    else:
        options = tf.distribute.experimental.CommunicationOptions()
        sums = extended._replica_ctx_all_reduce(tf.distribute.ReduceOp.SUM, values, options)
    return [tf.stop_gradient(value) for value in sums]
