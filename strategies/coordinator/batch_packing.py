"""A batch as one tensor of bytes, because TensorFlow sends each argument of a function on another task by a call of its own."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

ALIGNMENT = 8
"""Every value begins at a multiple of this many bytes."""


def can_pack(values: list[Any]) -> bool:
    """Whether all `values` are dense tensors of numbers in this process."""
    return all(
        isinstance(v, tf.Tensor) and v.dtype.is_numpy_compatible and v.dtype.size and v.dtype.base_dtype not in _NOT
        for v in values
    )


_NOT = (tf.string, tf.resource, tf.variant, tf.bool)


def pack(values: list[Any]) -> Any:
    """The values as bytes, numpy uint8 [n]: first their dimensions as int32, then each value."""
    arrays = [value.numpy() for value in values]
    header = np.array([size for array in arrays for size in array.shape], np.int32)
    parts = []
    for array in (header, *arrays):
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        parts.append(flat)
        if flat.size % ALIGNMENT:
            parts.append(np.zeros(ALIGNMENT - flat.size % ALIGNMENT, np.uint8))
    return np.concatenate(parts)


def unpack(message: Any, specs: list[tf.TensorSpec]) -> list[Any]:
    """In a function: the values, of what `pack` made of them.

    Args:
        message: bytes [n], uint8.
        specs: their dtypes and shapes; dimensions that differ from batch to batch are None.
    """
    ranks = [spec.shape.rank for spec in specs]
    dimensions = sum(ranks)
    header = tf.bitcast(tf.reshape(message[: 4 * dimensions], [dimensions, 4]), tf.int32)
    begin: Any = _padded(4 * dimensions)
    values = []
    for spec, shape in zip(specs, tf.split(header, ranks) if ranks else [], strict=True):
        known = spec.shape.num_elements()
        length = (math.prod(spec.shape) if known is not None else tf.reduce_prod(shape)) * spec.dtype.size
        piece = tf.slice(message, [begin], [length])
        width = [-1, spec.dtype.size] if spec.dtype.size > 1 else [-1]
        value = tf.bitcast(tf.reshape(piece, width), spec.dtype)
        values.append(tf.ensure_shape(tf.reshape(value, spec.shape if known is not None else shape), spec.shape))
        begin = begin + _padded(length)
    return values


def _padded(length: Any) -> Any:
    return (length + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
