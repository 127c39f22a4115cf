"""Batches on the chief: their shapes, and how one travels to a worker as a single tensor of bytes.

TensorFlow sends each argument of a function that another task runs with a call of its own.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

ALIGNMENT = 8
"""Every value begins at a multiple of this many bytes."""

_UNPACKABLE = (tf.string, tf.resource, tf.variant, tf.bool)


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


def runs_of_equal_shapes(batches: list[Any]) -> list[list[Any]]:
    """Splits `batches`, in order, where their shapes change. The batches of each run can be stacked."""
    runs: list[list[Any]] = []
    last: Any = None
    for batch in batches:
        flat = tf.nest.flatten(batch)
        dense = all(isinstance(value, tf.Tensor) for value in flat)
        shapes = [value.shape for value in flat] if dense else None
        if dense and shapes == last:
            runs[-1].append(batch)
        else:
            runs.append([batch])
        last = shapes
    return runs


def examples_in(batch: Any) -> int | None:
    """Returns the number of examples of a batch; None if no tensor of the batch is dense."""
    for value in tf.nest.flatten(batch):
        if isinstance(value, tf.Tensor) and value.shape.rank:
            return int(value.shape[0])
    return None


def type_of(value: Any) -> Any:
    """Returns what two values must have in common to be arguments of the same traced function."""
    if isinstance(value, tf.Tensor):
        return value.dtype, tuple(value.shape)
    return None if value is None else tf.type_spec_from_value(value)


def shapes_to_trace(flat: list[Any], element_spec: Any, stacked: bool) -> list[Any]:
    """Returns the shapes to trace a function for: those of the dataset if they fit, else those of the values.

    Args:
        flat: the values.
        element_spec: nested specifications of the dataset's elements, or None.
        stacked: whether `flat` holds several batches along a new first dimension.
    """
    own = [getattr(value, "shape", None) for value in flat]
    specs = tf.nest.flatten(element_spec)
    if len(specs) != len(flat) or not all(isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None for spec in specs):
        return own
    general = [tf.TensorShape([None]).concatenate(spec.shape) if stacked else spec.shape for spec in specs]
    fit = all(shape.is_compatible_with(value) for shape, value in zip(general, own, strict=True))
    return general if fit else own
