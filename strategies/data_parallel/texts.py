"""Texts of all replicas: TensorFlow's collectives send numbers only, so each byte travels as one."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_CHARACTERS = [bytes([byte]) for byte in range(256)] + [b""]


def gathered_texts(strategy: Any, texts: Any, rows: Callable[[Any, Any], tf.Tensor]) -> tf.Tensor:
    """Returns the texts of all replicas, concatenated along the first dimension.

    Args:
        strategy: the strategy of the replicas.
        texts: a value per replica, of dtype string and rank 1 or more.
        rows: returns the rows of a tensor of numbers per replica, given the strategy and the tensor.
    """
    lengths = rows(strategy, strategy.run(tf.strings.length, args=(texts,)))
    longest = tf.maximum(tf.reduce_max(lengths), 1)

    def numbers(texts: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.io.decode_raw(texts, tf.uint8, fixed_length=longest), tf.int32)

    sent = rows(strategy, strategy.run(numbers, args=(texts,)))
    kept = tf.where(tf.sequence_mask(lengths, longest), sent, len(_CHARACTERS) - 1)
    return tf.strings.reduce_join(tf.gather(tf.constant(_CHARACTERS), kept), axis=-1)
