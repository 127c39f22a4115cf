"""Fuses tensors, so that they travel as one message: small tensors of one dtype as a vector, a whole batch as bytes.

TensorFlow makes one call for each tensor that it sends, and one for each argument of a function that another task runs. In a
model with many small variables these calls take longer than the computation.
"""

import functools
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


def can_pack(values: Sequence[Any]) -> bool:
    """Returns whether all `values` are dense tensors of numbers in this process."""
    return all(isinstance(v, tf.Tensor) and _is_packable(v.dtype) for v in values)


@functools.cache
def _is_packable(dtype: tf.DType) -> bool:
    return bool(dtype.is_numpy_compatible and dtype.size and dtype.base_dtype not in _UNPACKABLE)


def pack(batches: Sequence[Sequence[Any]], stacked: bool = False, arguments: Sequence[Any] = ()) -> Any:
    """Returns values as bytes, numpy uint8 [n]: the arguments, the dimensions of the values as int32, then each value.

    Args:
        batches: the values of each batch, numpy arrays. Those of several batches have equal shapes and dtypes.
        stacked: whether the values get a first dimension for the batches. If not, there is one batch.
        arguments: numpy arrays of fixed shapes, which the receiver knows.
    """
    first = batches[0]
    shapes = [(len(batches), *array.shape) if stacked else array.shape for array in first]
    header = np.array([size for shape in shapes for size in shape], np.int32)
    leading = [*arguments, header]
    lengths = [array.nbytes for array in leading] + [array.nbytes * len(batches) for array in first]
    message = np.empty([sum(_padded(length) for length in lengths)], np.uint8)
    begin, regions = 0, []
    for array, shape, length in zip((*leading, *first), [each.shape for each in leading] + shapes, lengths, strict=True):
        regions.append(message[begin : begin + length].view(array.dtype).reshape(shape))
        message[begin + length : begin + _padded(length)] = 0
        begin += _padded(length)
    for array, region in zip(leading, regions, strict=False):
        region[...] = array
    for position, region in enumerate(regions[len(leading) :]):
        for number, values in enumerate(batches):
            region[number if stacked else ...] = values[position]
    return message


def unpack_arguments(message: Any, specs: Sequence[tf.TensorSpec]) -> tuple[list[Any], int]:
    """Returns the arguments that `pack` has put into `message`, and where they end. Use it in a function.

    Args:
        message: the bytes, uint8 [n].
        specs: the dtypes and shapes of the arguments, fully known.
    """
    begin, arguments = 0, []
    for spec in specs:
        length = spec.shape.num_elements() * spec.dtype.size
        arguments.append(_cut(message, begin, length, spec, spec.shape))
        begin += _padded(length)
    return arguments, begin


def unpack(message: Any, specs: list[tf.TensorSpec], begin: int = 0) -> list[Any]:
    """Returns the values that `pack` has put into `message`. Use it in a function.

    Args:
        message: the bytes, uint8 [n].
        specs: the dtypes and shapes of the values. A dimension that differs between batches is None.
        begin: where the arguments end.
    """
    ranks = [spec.shape.rank for spec in specs]
    dimensions = sum(ranks)
    header = tf.bitcast(tf.reshape(message[begin : begin + 4 * dimensions], [dimensions, 4]), tf.int32)
    place: Any = begin + _padded(4 * dimensions)
    values = []
    for spec, shape in zip(specs, tf.split(header, ranks) if ranks else [], strict=True):
        known = spec.shape.num_elements()
        length = (math.prod(spec.shape) if known is not None else tf.reduce_prod(shape)) * spec.dtype.size
        values.append(_cut(message, place, length, spec, spec.shape if known is not None else shape))
        place = place + _padded(length)
    return values


def _cut(message: Any, begin: Any, length: Any, spec: tf.TensorSpec, shape: Any) -> Any:
    piece = tf.slice(message, [begin], [length])
    width = [-1, spec.dtype.size] if spec.dtype.size > 1 else [-1]
    value = tf.bitcast(tf.reshape(piece, width), spec.dtype)
    return tf.ensure_shape(tf.reshape(value, shape), spec.shape)


def _padded(length: Any) -> Any:
    return (length + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
