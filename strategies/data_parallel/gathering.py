"""What the replicas of all tasks predict, in every task."""

from typing import Any

import tensorflow as tf

from tfdist.strategies.data_parallel.texts import gathered_texts
from tfdist.strategies.inputs.batches import joined_rows
from tfdist.strategies.keras_hooks.replicas.reduction import sent_as


def gathered(strategy: Any, replicas: int, value: Any) -> Any:
    """Returns a value per replica as one, concatenated along the first dimension; a scalar is the same on all.

    Args:
        strategy: the strategy.
        replicas: their number in all tasks.
        value: a dense, ragged or sparse tensor per replica.
    """
    local = strategy.experimental_local_results(value)
    first = local[0]
    if first.shape.rank == 0:
        return first
    if len(local) == replicas:
        return joined_rows(local)
    if isinstance(first, tf.RaggedTensor):
        lengths = [_rows(strategy, strategy.run(_lengths, args=(value, level))) for level in range(first.ragged_rank)]
        values = gathered(strategy, replicas, strategy.run(lambda ragged: ragged.flat_values, args=(value,)))
        return tf.RaggedTensor.from_nested_row_lengths(values, lengths, validate=False)
    if isinstance(first, tf.SparseTensor):
        shapes = _rows(strategy, strategy.run(lambda sparse: sparse.dense_shape[tf.newaxis], args=(value,)))
        before = tf.cumsum(shapes[:, 0], exclusive=True)

        def indices_of_all(sparse: tf.SparseTensor) -> tf.Tensor:
            offset = before[tf.distribute.get_replica_context().replica_id_in_sync_group]
            return sparse.indices + tf.pad(offset[tf.newaxis], [[0, first.shape.rank - 1]])

        indices = _rows(strategy, strategy.run(indices_of_all, args=(value,)))
        values = gathered(strategy, replicas, strategy.run(lambda sparse: sparse.values, args=(value,)))
        shape = tf.concat([tf.reduce_sum(shapes[:, :1], axis=0), tf.reduce_max(shapes[:, 1:], axis=0)], axis=0)
        return tf.SparseTensor(indices, values, shape)
    if first.dtype == tf.string:
        return gathered_texts(strategy, value, _rows)
    return tf.cast(_rows(strategy, strategy.run(lambda v: tf.cast(v, sent_as(v.dtype)), args=(value,))), first.dtype)


def _lengths(ragged: tf.RaggedTensor, level: int) -> tf.Tensor:
    return ragged.nested_row_lengths()[level]


def _rows(strategy: Any, value: Any) -> tf.Tensor:
    """Returns the rows of a tensor of numbers per replica.

    TensorFlow's collective of empty tensors ends the process with SIGSEGV. So the first replica sends a row of zeros before its
    own, and a row that may be empty travels with a zero after it.
    """
    sample = strategy.experimental_local_results(value)[0]
    is_full = bool(sample.shape[1:].num_elements())

    def sent(value: tf.Tensor) -> tf.Tensor:
        if not is_full:
            value = tf.pad(tf.reshape(value, [tf.shape(value)[0], tf.reduce_prod(tf.shape(value)[1:])]), [[0, 0], [0, 1]])
        is_first = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group) == 0
        zeros = tf.zeros(tf.concat([[1], tf.shape(value)[1:]], 0), value.dtype)
        return tf.concat([zeros, value], 0) if is_first else value

    rows = strategy.gather(strategy.run(sent, args=(value,)), axis=0)[1:]
    if is_full:
        return rows
    return tf.ensure_shape(
        tf.reshape(rows[:, :-1], tf.concat([tf.shape(rows)[:1], tf.shape(sample)[1:]], 0)), [None, *sample.shape[1:]]
    )
