"""Batches as nested structures of tensors."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def as_tensors(batch: Any) -> Any:
    """Returns a batch of numpy arrays, lists or tensors as tensors; None stays None."""
    return tf.nest.map_structure(lambda v: None if v is None else tf.convert_to_tensor(v), batch)


def without_optionals(batch: Any) -> Any:
    """Returns the batch with None in place of each `tf.experimental.Optional`: Keras makes them of None."""
    return tf.nest.map_structure(lambda v: None if isinstance(v, tf.experimental.Optional) else v, batch)


def concatenated(outputs: Sequence[Any]) -> Any:
    """Returns the outputs for several batches or shards, concatenated along the first dimension."""
    return outputs[0] if len(outputs) == 1 else tf.nest.map_structure(lambda *o: tf.concat(o, axis=0), *outputs)


def rows_of(batch: Any) -> int | None:
    """Returns the number of examples of a batch; None if no shape tells it, as in a function for batches of all sizes."""
    shapes = [value.shape for value in tf.nest.flatten(batch) if isinstance(value, tf.Tensor)]
    return next((shape[0] for shape in shapes if shape.rank), None)
