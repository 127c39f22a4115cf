"""Sums over the replicas that compute a step together, and the dtypes in which values travel."""

from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.same_rows import with_values
from tfdist.strategies.private_api import batch_reduce_destination

_SENT_AS = {
    **dict.fromkeys((tf.bfloat16, tf.dtypes.experimental.float8_e4m3fn, tf.dtypes.experimental.float8_e5m2), tf.float32),
    **dict.fromkeys((tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16), tf.int32),
    **dict.fromkeys((tf.uint32, tf.uint64), tf.int64),
}
"""Dtypes that TensorFlow's collectives refuse, and those in which such values travel."""


def sent_as(dtype: Any) -> Any:
    """Returns a dtype that holds all values of `dtype` and can be broadcast and gathered; `dtype` itself if it can."""
    return _SENT_AS.get(dtype, dtype)


def is_number(value: tf.Tensor) -> bool:
    """Returns whether a tensor has numbers, or truth values, which the replicas can add up."""
    return bool(value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool)


def all_reduce_sum(gradients: list[Any], same_rows: list[bool] | None = None) -> list[Any]:
    """Returns the sum of each tensor or IndexedSlices over all replicas; dense tensors of a dtype travel together.

    None stays None, and a tensor in parts (`model_parallel`) stays in parts. Every replica has to call it, with tensors of the
    same shapes.

    Args:
        gradients: the tensors.
        same_rows: for each whether it is IndexedSlices with the same rows on all replicas; by default none is.

    Raises:
        ValueError: in a function of the user's that XLA compiles.
    """
    context, replica = tf.distribute.get_replica_context(), replica_context.current()
    extended = context.strategy.extended
    groups = getattr(extended, "groups", None)
    if groups is None and context.num_replicas_in_sync == 1:  # A merge could not stand in a `cond`.
        return [tf.stop_gradient(value) if isinstance(value, tf.Tensor) else value for value in gradients]
    if replica is not None and replica.compiling is not None:
        raise ValueError(
            f"the function {replica.compiling} has jit_compile=True and computes something of a whole batch, such as a loss of "
            f"one number, or one with a mask, which {context.num_replicas_in_sync} replicas share: XLA cannot add up over "
            "them. Leave jit_compile out, or compute that outside of the function"
        )
    if same_rows is not None and any(same_rows):
        pairs = list(zip(gradients, same_rows, strict=True))
        sums = all_reduce_sum([each.values if is_same else each for each, is_same in pairs])
        return [with_values(each, total) if is_same else total for (each, is_same), total in zip(pairs, sums, strict=True)]
    if any(isinstance(gradient, tf.experimental.ExtensionType) for gradient in gradients):
        return _with_split(gradients, groups)
    is_looping = replica is not None and replica.looping and (groups is None or groups.replicas > 1)
    if is_looping and any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        # Their length differs from step to step, and a collective in a loop has one shape.
        raise replica_context.NotInLoopError
    sums = list(gradients)
    for indices in _by_kind(gradients):
        for index, total in zip(indices, _sums(context, [gradients[i] for i in indices]), strict=True):
            sums[index] = total
    return sums


def of_each_replica(values: list[Any]) -> list[Any]:
    """Returns for each tensor those of all replicas, `[replicas, ...]`. Every replica has to call it, with equal shapes."""
    context = tf.distribute.get_replica_context()
    here = tf.one_hot(context.replica_id_in_sync_group, context.num_replicas_in_sync)
    rows = [tf.cast(tf.reshape(here, [-1] + [1] * value.shape.rank), value.dtype) * value[None] for value in values]
    return all_reduce_sum(rows)


def _by_kind(gradients: list[Any]) -> list[list[int]]:
    """Returns the indices of the tensors of each dtype, and of each IndexedSlices; those of None are left out."""
    kinds: dict[Any, list[int]] = {}
    for index, gradient in enumerate(gradients):
        if gradient is not None:
            kinds.setdefault(("sparse", index) if isinstance(gradient, tf.IndexedSlices) else gradient.dtype, []).append(index)
    return list(kinds.values())


def _with_split(gradients: list[Any], groups: Any) -> list[Any]:
    """Returns what `all_reduce_sum` returns if some of the tensors are in parts.

    If the replicas span tasks, the parts of a task are added up with those that other replicas have in their place.
    """
    pieces = [list(each.parts) if isinstance(each, tf.experimental.ExtensionType) else each for each in gradients]
    if groups is None:
        sums = tf.nest.pack_sequence_as(pieces, all_reduce_sum(tf.nest.flatten(pieces)))
    else:
        parts = [part for each in pieces if isinstance(each, list) for part in each]
        for indices in _by_kind(parts):
            for index, total in zip(indices, groups.sums_of_shards([parts[i] for i in indices]), strict=True):
                parts[index] = tf.stop_gradient(total)
        whole = all_reduce_sum([None if isinstance(each, list) else each for each in pieces])
        found = iter(parts)
        sums = [
            [next(found) for _ in each] if isinstance(each, list) else total for each, total in zip(pieces, whole, strict=True)
        ]
    return [
        gradient.with_parts(total) if isinstance(gradient, tf.experimental.ExtensionType) else total
        for gradient, total in zip(gradients, sums, strict=True)
    ]


def _with_a_row(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns slices with a row of zeros if they have no row, as those of a batch of empty sequences.

    TensorFlow's `CollectiveGatherV2` of empty tensors ends the process with SIGSEGV.
    """
    if slices.indices.shape.num_elements():
        return slices
    missing = tf.cast(tf.equal(tf.size(slices.indices), 0), tf.int32)
    row = tf.zeros(tf.concat([[missing], tf.shape(slices.values)[1:]], 0), slices.values.dtype)
    first = tf.zeros([missing], slices.indices.dtype)
    values, indices = tf.concat([slices.values, row], 0), tf.concat([slices.indices, first], 0)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _sum_of_slices(context: Any, slices: tf.IndexedSlices) -> tf.IndexedSlices:
    dtype = slices.dtype
    sent = tf.IndexedSlices(tf.cast(slices.values, sent_as(dtype)), slices.indices, slices.dense_shape)
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, sent)
    return tf.IndexedSlices(tf.cast(total.values, dtype), total.indices, total.dense_shape)


def _sums(context: Any, values: list[Any]) -> list[Any]:
    """Does what `context.all_reduce` does, without a gradient: nothing differentiates the sums.

    For its gradient TensorFlow would walk back through the whole step, and it registers the gradient in a table from which
    nothing is ever removed: the function, its graph and the variables of the model would exist until the process ends.
    """
    groups = getattr(context.strategy.extended, "groups", None)
    if isinstance(values[0], tf.IndexedSlices):
        slices = _with_a_row(values[0])
        if groups is None:
            return [_sum_of_slices(context, slices)]
        return [groups.sums_of_slices(slices, lambda alike: context.all_reduce(tf.distribute.ReduceOp.SUM, alike))]
    given, values = values, [tf.stop_gradient(_with_an_element(value)) for value in values]

    def merge(strategy: Any, *merged: Any) -> Any:
        pairs = [(value, batch_reduce_destination(value)) for value in merged]
        return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)

    extended = context.strategy.extended
    in_buckets = getattr(extended, "sums_in_buckets", None)
    if extended._use_merge_call() and groups is None:
        sums = context.merge_call(merge, args=values)
    elif in_buckets is not None:
        sums = in_buckets(values)
    else:
        options = tf.distribute.experimental.CommunicationOptions()
        sums = extended._replica_ctx_all_reduce(tf.distribute.ReduceOp.SUM, values, options)
    return [tf.stop_gradient(_without_the_element(total, value)) for total, value in zip(sums, given, strict=True)]


def _with_an_element(value: tf.Tensor) -> tf.Tensor:
    """Returns a tensor that may be empty in a row, with a zero after it. TensorFlow's `CollectiveReduceV2` of empty ones ends
    the process with SIGSEGV.
    """
    if value.shape.num_elements():
        return value
    return tf.concat([tf.reshape(value, [-1]), tf.zeros([1], value.dtype)], 0)


def _without_the_element(total: Any, value: tf.Tensor) -> Any:
    """Returns the sum of tensors like `value` from that of those with an element more."""
    return total if value.shape.num_elements() else tf.ensure_shape(tf.reshape(total[:-1], tf.shape(value)), value.shape)
