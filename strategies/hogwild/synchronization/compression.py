"""Compressors: progress and parameters in fewer bytes (bf16, int8, int4) between worker groups and ps tasks.

`Compressor.encode` and `decode` run inside a `tf.function`. `decode` returns the same bits wherever it runs: eagerly, in a
graph, compiled, on either side, with denormal numbers flushed or not. A group computes what the ps decodes and adds the
rounding error to its next push (error feedback, arXiv 1901.09847). If the two sides decoded differently, they would drift
apart.

| kind | tensors for n values | bytes | bytes per value |
|---|---|---|---|
| None, "float32" | float32 [n] | 4 n | 4 |
| "bf16" | bfloat16 [n] | 2 n | 2 |
| "int8" | int8 [n], float32 [b] | n + 4 b | 1.015625 |
| "int4" | uint8 [ceil(n / 2)], float32 [b] | ceil(n / 2) + 4 b | 0.515625 |

b = ceil(n / 256) is the number of blocks of 256 values with one scale each. The last column is for multiples of 256.

To add a compressor, write a class, add a line to `COMPRESSORS`, and add its name to `tfdist.synchronization.COMPRESSIONS`.
"""

import abc
from typing import Any

import tensorflow as tf

BLOCK = 256
"""Number of values that share a scale."""

LARGEST = 2.0**127
"""Largest magnitude that int8 and int4 carry. Training does not reach it."""

# Twice the smallest normal float32. No product with a scale is a denormal number, which TensorFlow flushes to zero in some
# threads only.
_SMALLEST_SCALE = 2.0**-125
_LOW_BITS = 0xFF

Message = tuple[Any, ...]
"""The tensors that are sent for a vector."""


class Compressor(abc.ABC):
    """Encodes float32 vectors of known length."""

    lossless = False
    """Whether `decode` returns exactly the values that `encode` got."""

    @abc.abstractmethod
    def encode(self, values: Any) -> Message:
        """Returns the tensors to send for `values`.

        Args:
            values: float32 [n], with n known when the function is traced.

        Raises:
            ValueError: for another dtype or rank, or an unknown n.
        """

    @abc.abstractmethod
    def decode(self, message: Message, n: int) -> Any:
        """Returns the n values that `message` stands for, float32 [n]."""

    @abc.abstractmethod
    def size(self, n: int) -> int:
        """Returns the number of bytes of the tensors for n values."""


class Float32(Compressor):
    """Sends values of any dtype as they are."""

    lossless = True

    def encode(self, values: Any) -> Message:
        """See `Compressor.encode`. Accepts any dtype and length."""
        return (tf.convert_to_tensor(values),)

    def decode(self, message: Message, n: int) -> Any:
        """See `Compressor.decode`."""
        return tf.identity(message[0])

    def size(self, n: int) -> int:
        """See `Compressor.size`."""
        return 4 * n


class BFloat16(Compressor):
    """Rounds to the nearest bfloat16, which has 8 significant bits.

    The relative error is at most 2^-8. Infinities and NaN stay. Values that round to above 3.3895e38 become infinite.
    """

    def encode(self, values: Any) -> Message:
        """See `Compressor.encode`."""
        return (tf.cast(_checked(values), tf.bfloat16),)

    def decode(self, message: Message, n: int) -> Any:
        """See `Compressor.decode`."""
        return tf.cast(message[0], tf.float32)

    def size(self, n: int) -> int:
        """See `Compressor.size`."""
        return 2 * n


class Scaled(Compressor):
    """Rounds each block of 256 values to whole multiples of the scale of the block.

    The scale is the largest magnitude in the block / `limit`, rounded up to 16 significant bits. Ties round to the even
    multiple. The error is at most half a scale, plus 2^-16 of a scale for float32's own rounding. Zero stays exactly zero. A
    block whose scale would be below 2^-125 becomes zeros. A block with a NaN, an infinity or a magnitude above 2^127 becomes
    NaN altogether, so that it is not taken for numbers.

    Every product of a multiple and a scale is exact: 7 bits and 16 bits fit into the 24 bits of float32. So compilers that fuse
    multiplication and subtraction, as XLA does, do not change it.
    """

    limit: int
    """Largest multiple."""

    def encode(self, values: Any) -> Message:
        """See `Compressor.encode`."""
        values = _checked(values)
        n = values.shape[0]
        rows = tf.reshape(tf.pad(values, [[0, -n % BLOCK]]), [_blocks(n), BLOCK])
        scales = _scales(tf.abs(rows), self.limit)
        # Divide only by usable scales: how NaN is cast to a whole number depends on the processor.
        usable = tf.expand_dims(scales >= _SMALLEST_SCALE, 1)
        quotients = tf.where(usable, rows, 0.0) / tf.where(usable, tf.expand_dims(scales, 1), 1.0)
        return self._pack(tf.reshape(tf.round(quotients), [-1]), n), scales

    def decode(self, message: Message, n: int) -> Any:
        """See `Compressor.decode`."""
        packed, scales = message
        rows = tf.reshape(tf.pad(self._unpack(packed, n), [[0, -n % BLOCK]]), [_blocks(n), BLOCK])
        return tf.reshape(rows * tf.expand_dims(scales, 1), [-1])[:n]

    @abc.abstractmethod
    def _pack(self, multiples: Any, n: int) -> Any:
        """Returns the tensor to send for the first n of these float32 multiples."""

    @abc.abstractmethod
    def _unpack(self, packed: Any, n: int) -> Any:
        """Returns the n multiples, float32."""


class Int8(Scaled):
    """Sends multiples from -127 to 127, one byte each."""

    limit = 127

    def size(self, n: int) -> int:
        """See `Compressor.size`."""
        return n + 4 * _blocks(n)

    def _pack(self, multiples: Any, n: int) -> Any:
        return tf.cast(multiples[:n], tf.int8)

    def _unpack(self, packed: Any, n: int) -> Any:
        return tf.cast(packed, tf.float32)


class Int4(Scaled):
    """Sends multiples from -7 to 7 as 1 to 15, two in a byte.

    A byte holds a value of the first half of the vector in its low bits and one of the second half in its high bits. Halves
    instead of neighbors, and float arithmetic instead of bit operations, let the processor work on many values at a time.
    """

    limit = 7

    def size(self, n: int) -> int:
        """See `Compressor.size`."""
        return (n + 1) // 2 + 4 * _blocks(n)

    def _pack(self, multiples: Any, n: int) -> Any:
        half = (n + 1) // 2
        low, high = multiples[:half], tf.pad(multiples[half:n], [[0, n % 2]])
        return tf.cast((low + 8.0) + (high + 8.0) * 16.0, tf.uint8)

    def _unpack(self, packed: Any, n: int) -> Any:
        both = tf.cast(packed, tf.float32)
        high = tf.floor(both * 0.0625)
        return tf.concat([both - high * 16.0 - 8.0, high - 8.0], axis=0)[:n]


COMPRESSORS: dict[str | None, Compressor] = {
    None: Float32(),
    "float32": Float32(),
    "bf16": BFloat16(),
    "int8": Int8(),
    "int4": Int4(),
}
"""Compressors by kind; with None, which no one has chosen or measured, parameters travel as float32."""


def _checked(values: Any) -> Any:
    values = tf.convert_to_tensor(values)
    if values.dtype != tf.float32 or values.shape.rank != 1 or values.shape[0] is None:
        raise ValueError(f"expected a float32 vector of known length, found {values.dtype.name} {values.shape}")
    return values


def _blocks(n: int) -> int:
    return (n + BLOCK - 1) // BLOCK


def _scales(magnitudes: Any, limit: int) -> Any:
    """Returns the scale of each row: 0 for rows of zeros, NaN for rows with a value that cannot be sent."""
    exact = tf.reduce_max(magnitudes, axis=1) / float(limit)
    # Rounds up to 16 significant bits. For positive floats, a larger bit pattern is a larger number.
    bits = tf.bitwise.bitwise_and(tf.bitcast(exact, tf.int32) + _LOW_BITS, ~_LOW_BITS)
    scales = tf.where(exact >= _SMALLEST_SCALE, tf.bitcast(bits, tf.float32), 0.0)
    # `<=` is false for NaN, so rows with NaN fail this test.
    return tf.where(tf.reduce_all(magnitudes <= LARGEST, axis=1), scales, float("nan"))
