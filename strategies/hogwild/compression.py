"""Changes of parameters in fewer bytes: bf16, int8 and int4, for the way between worker groups and centre.

`encode` and `decode` are called inside a `tf.function`. `decode` gives the same bits wherever it is called (eagerly, in a
graph, compiled, on either side, with denormal numbers flushed or not), because a group subtracts from its change what the
centre will make of it and sends the rest next time (error feedback, arXiv 1901.09847); anything else would drift.

| kind | sent for n values | bytes | per value |
|---|---|---|---|
| None | float32 [n] | 4 n | 4 |
| "bf16" | bfloat16 [n] | 2 n | 2 |
| "int8" | int8 [n], float32 [b] | n + 4 b | 1.015625 |
| "int4" | uint8 [ceil(n / 2)], float32 [b] | ceil(n / 2) + 4 b | 0.515625 |

with b = ceil(n / 256) blocks of 256 values, each with one scale; per value where 256 divides n.
"""

from typing import Any

import tensorflow as tf

BLOCK = 256
"""Values that share a scale."""

LARGEST = 2.0**127
"""Largest value that int8 and int4 carry; a change of this size is no training."""

_LIMITS = {"int8": 127, "int4": 7}
# Twice float32's smallest normal number: no product of a scale is a denormal number, which TensorFlow flushes to zero in some
# threads and not in others.
_SMALLEST_SCALE = 2.0**-125
_LOW_BITS = 0xFF


def encode(values: Any, kind: str | None) -> tuple[Any, ...]:
    """Returns the tensors to send for `values`.

    bf16 rounds to the nearest bfloat16, of 8 significant bits: relative error at most 2^-8; infinities and NaN stay what they
    are, and values that round to above 3.3895e38 become infinite.

    int8 and int4 round to the nearest whole multiple, to the even one of two, of the block's scale, which is the largest
    magnitude in the block / 127 (int8) or / 7 (int4), rounded up to 16 significant bits: the error is at most half a scale,
    and 2^-16 of one by float32's own rounding. Zero stays exactly zero. A block whose scale would be below 2^-125 becomes
    zeros. A block with a NaN, an infinity or a magnitude above 2^127 becomes NaN altogether, so that it is seen and not taken
    for a number.

    Args:
        values: float32 [n], n known when the function is traced.
        kind: None, "bf16", "int8" or "int4".

    Raises:
        ValueError: for another kind, dtype or rank, or an unknown n.
    """
    values = tf.convert_to_tensor(values)
    if values.dtype != tf.float32 or values.shape.rank != 1 or values.shape[0] is None:
        raise ValueError(f"a float32 vector of known length is encoded, not {values.dtype.name} {values.shape}")
    if kind is None:
        return (values,)
    if kind == "bf16":
        return (tf.cast(values, tf.bfloat16),)
    limit = _limit(kind)
    n = values.shape[0]
    rows = tf.reshape(tf.pad(values, [[0, -n % BLOCK]]), [_blocks(n), BLOCK])
    scales = _scales(tf.abs(rows), limit)
    # Divided only where the quotient is a small number; what a cast makes of NaN is up to the processor.
    usable = tf.expand_dims(scales >= _SMALLEST_SCALE, 1)
    quotients = tf.where(usable, rows, 0.0) / tf.where(usable, tf.expand_dims(scales, 1), 1.0)
    whole = tf.reshape(tf.round(quotients), [-1])
    return (tf.cast(whole[:n], tf.int8) if kind == "int8" else _packed(whole, n)), scales


def decode(parts: tuple[Any, ...], n: int, kind: str | None) -> Any:
    """Returns the values [n], float32, that `parts`, made by `encode`, stand for.

    Every product of a whole number and a scale is exact: 7 bits and 16 bits fit into float32's 24. So a compiler that contracts
    multiplication and subtraction, as XLA does, changes nothing.

    Args:
        parts: the tensors of `encode`.
        n: how many values they stand for.
        kind: as for `encode`.

    Raises:
        ValueError: for another kind.
    """
    if kind is None:
        return tf.identity(parts[0])
    if kind == "bf16":
        return tf.cast(parts[0], tf.float32)
    _limit(kind)
    whole, scales = parts
    whole = tf.cast(whole, tf.float32) if kind == "int8" else _unpacked(whole, n)
    rows = tf.reshape(tf.pad(whole, [[0, -n % BLOCK]]), [_blocks(n), BLOCK])
    return tf.reshape(rows * tf.expand_dims(scales, 1), [-1])[:n]


def size(n: int, kind: str | None) -> int:
    """The bytes that `encode` makes of n values.

    Raises:
        ValueError: for another kind.
    """
    if kind in (None, "bf16"):
        return 4 * n if kind is None else 2 * n
    _limit(kind)
    return (n if kind == "int8" else (n + 1) // 2) + 4 * _blocks(n)


def _limit(kind: str | None) -> int:
    if kind not in _LIMITS:
        raise ValueError(f"{kind!r} is no kind of compression; expected None, 'bf16', 'int8' or 'int4'")
    return _LIMITS[kind]


def _blocks(n: int) -> int:
    return (n + BLOCK - 1) // BLOCK


def _scales(magnitudes: Any, limit: int) -> Any:
    """The scale of each row: 0 for zeros, NaN where a value is not a number that can be sent."""
    exact = tf.reduce_max(magnitudes, axis=1) / float(limit)
    # Up to 16 significant bits. The numbers are positive, so the bits count up with them.
    bits = tf.bitwise.bitwise_and(tf.bitcast(exact, tf.int32) + _LOW_BITS, ~_LOW_BITS)
    scales = tf.where(exact >= _SMALLEST_SCALE, tf.bitcast(bits, tf.float32), 0.0)
    # Asked this way round, because nothing is at most anything where it is NaN.
    return tf.where(tf.reduce_all(magnitudes <= LARGEST, axis=1), scales, float("nan"))


def _packed(whole: Any, n: int) -> Any:
    """Two numbers from -7 to 7 in a byte, as 1 to 15: one of the first half in the low bits, one of the second above them.

    Halves rather than neighbors, and numbers rather than bits: a processor does that with many values at a time.
    """
    half = (n + 1) // 2
    low, high = whole[:half], tf.pad(whole[half:n], [[0, n % 2]])
    return tf.cast((low + 8.0) + (high + 8.0) * 16.0, tf.uint8)


def _unpacked(packed: Any, n: int) -> Any:
    both = tf.cast(packed, tf.float32)
    high = tf.floor(both * 0.0625)
    return tf.concat([both - high * 16.0 - 8.0, high - 8.0], axis=0)[:n]
