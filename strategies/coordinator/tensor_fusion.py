"""Fuses tensors, so that they travel as one message: small tensors of one dtype as a vector, a whole batch as bytes.

TensorFlow makes one call for each tensor that it sends, and one for each argument of a function that another task runs. In a
model with many small variables these calls take longer than the computation.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

FUSE_BELOW_BYTES = 256 * 1024
"""Tensors smaller than this are fused. Copying a larger one costs more than the call that it saves."""

ALIGNMENT = 8
"""Every value begins at a multiple of this many bytes."""

_UNPACKABLE = (tf.string, tf.resource, tf.variant, tf.bool)


def is_small(shape: tf.TensorShape, dtype: tf.DType) -> bool:
    """Returns whether a tensor of this shape and dtype is worth fusing."""
    return bool(shape.is_fully_defined()) and shape.num_elements() * dtype.size < FUSE_BELOW_BYTES and dtype != tf.string


def flatten(tensors: Sequence[Any]) -> Any:
    """Returns the values of one or more tensors of one dtype as a vector, [n]."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def unflatten(vector: Any, shapes: Sequence[tf.TensorShape]) -> list[Any]:
    """Returns the tensors of these shapes, fully known, whose values `flatten` has put into `vector`."""
    if not shapes:
        return []
    pieces = tf.split(vector, [shape.num_elements() for shape in shapes])
    return [tf.reshape(piece, shape) for piece, shape in zip(pieces, shapes, strict=True)]


def unflatten_array(vector: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Does the same as `unflatten` with a numpy array. Returns views of `vector`, and scalars as floats."""
    values, begin = [], 0
    for shape in shapes:
        end = begin + math.prod(shape)
        values.append(float(vector[begin]) if shape == () else vector[begin:end].reshape(shape))
        begin = end
    return values


def sum_over_replicas(values: Sequence[Sequence[Any]], devices: Sequence[str]) -> list[Any]:
    """Returns the sums of dense tensors over the replicas of a group, on the first replica's device.

    Args:
        values: the tensors of each replica, one sequence per sum. Those of a sum have the same dtype and shape.
        devices: the devices of the replicas.
    """
    sums: list[Any] = [None] * len(values)
    fused: dict[tf.DType, list[int]] = defaultdict(list)
    for position, tensors in enumerate(values):
        if is_small(tensors[0].shape, tensors[0].dtype):
            fused[tensors[0].dtype].append(position)
        else:
            with tf.device(devices[0]):
                sums[position] = tf.add_n(list(tensors))
    for positions in fused.values():
        vectors = []
        for replica, device in enumerate(devices):
            with tf.device(device):
                vectors.append(flatten([values[position][replica] for position in positions]))
        with tf.device(devices[0]):
            pieces = unflatten(tf.add_n(vectors), [values[position][0].shape for position in positions])
        for position, piece in zip(positions, pieces, strict=True):
            sums[position] = piece
    return sums


def can_pack(values: list[Any]) -> bool:
    """Returns whether all `values` are dense tensors of numbers in this process."""
    return all(
        isinstance(v, tf.Tensor) and v.dtype.is_numpy_compatible and v.dtype.size and v.dtype.base_dtype not in _UNPACKABLE
        for v in values
    )


def pack(values: list[Any]) -> Any:
    """Returns the values as bytes, numpy uint8 [n]: their dimensions as int32, then each value."""
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
    """Returns the values that `pack` has put into `message`. Use it in a function.

    Args:
        message: the bytes, uint8 [n].
        specs: the dtypes and shapes of the values. A dimension that differs between batches is None.
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
