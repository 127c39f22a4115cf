"""Batches as nested structures of tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_KEPT = (type(None), tf.SparseTensor, tf.RaggedTensor)


def as_tensors(batch: Any) -> Any:
    """Returns a batch of numpy arrays, lists or tensors as tensors; None, sparse and ragged tensors stay what they are."""
    return tf.nest.map_structure(lambda v: v if isinstance(v, _KEPT) else tf.convert_to_tensor(v), batch)


def without_optionals(batch: Any) -> Any:
    """Returns the batch, or its spec, with None in place of what Keras makes of None.

    That is a `tf.experimental.Optional`, or what tf.data itself takes None for.
    """

    def is_none(value: Any) -> bool:
        has_no_tensors = isinstance(value, tf.TypeSpec) and not tf.nest.flatten(value, expand_composites=True)
        return has_no_tensors or isinstance(value, tf.experimental.Optional | tf.OptionalSpec)

    return tf.nest.map_structure(lambda value: None if is_none(value) else value, batch)


def prefetched(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset, read ahead, unless it says that nobody may: Keras does so for a `PyDataset` with workers.

    These stop at the end of each epoch. Whoever reads on then gets an error, or takes a batch of the next epoch.
    """
    return dataset if dataset.options().autotune.enabled is False else dataset.prefetch(tf.data.AUTOTUNE)


def builds_models(spec: Any) -> bool:
    """Returns whether a nested spec without optionals says enough of a batch to build a model: all dimensions but the first."""
    return all(leaf is None or _has_inner_dimensions(leaf) for leaf in tf.nest.flatten(spec))


def with_dimensions_of(spec: Any, batch: Any) -> Any:
    """Returns a nested spec without optionals, with the shapes of a batch where it does not say enough.

    Args:
        spec: of batches of all sizes.
        batch: nested arrays; it may lack the last leaves of the spec.
    """
    leaves, values = tf.nest.flatten(spec), tf.nest.flatten(batch)
    for index, (leaf, value) in enumerate(zip(leaves, values, strict=False)):
        if isinstance(leaf, tf.TensorSpec) and not _has_inner_dimensions(leaf):
            leaves[index] = tf.TensorSpec(np.shape(value), leaf.dtype)
    return tf.nest.pack_sequence_as(spec, leaves)


def _has_inner_dimensions(leaf: Any) -> bool:
    is_plain = isinstance(leaf, tf.TensorSpec | tf.SparseTensorSpec)
    return is_plain and leaf.shape.rank is not None and None not in leaf.shape[1:]


def named_leaves(batch: Any, name: str = "batch") -> list[tuple[str, Any]]:
    """Returns the leaves of a batch in the order of TensorFlow, each with its place, such as "batch[0]['x']"."""
    if isinstance(batch, Mapping):
        return [leaf for key in sorted(batch) for leaf in named_leaves(batch[key], f"{name}[{key!r}]")]
    if isinstance(batch, tuple | list):
        return [leaf for index, value in enumerate(batch) for leaf in named_leaves(value, f"{name}[{index}]")]
    leaves = tf.nest.flatten(batch)  # Several of an object of a class of the user's own.
    return [(name, leaf) for leaf in leaves]


def concatenated(outputs: Sequence[Any]) -> Any:
    """Returns the outputs for several batches or shards, concatenated along the first dimension; scalars stacked."""

    def joined(*each: Any) -> Any:
        return tf.stack(each) if each[0].shape.rank == 0 else joined_rows(each)

    return outputs[0] if len(outputs) == 1 else tf.nest.map_structure(joined, *outputs)


def joined_rows(each: Sequence[Any]) -> Any:
    """Returns dense, ragged or sparse tensors, concatenated along the first dimension."""
    if isinstance(each[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(each), expand_nonconcat_dims=True)
    return tf.concat(each, axis=0)


def none_without_examples(outputs: Any, examples: tf.Tensor) -> Any:
    """Returns the outputs for a shard; no rows of them if the shard has no examples, and the step has run on a stand-in.

    Args:
        outputs: nested tensors. One may have any number of rows per example.
        examples: the number of examples, or their part of a batch.
    """
    end = tf.where(examples > 0, tf.int32.max, 0)

    def cut(value: Any) -> Any:
        if isinstance(value, tf.SparseTensor):
            shape = value.dense_shape
            rows = tf.minimum(shape[:1], tf.cast(end, tf.int64))
            return tf.sparse.slice(value, tf.zeros_like(shape), tf.concat([rows, shape[1:]], axis=0))
        return value if value.shape.rank == 0 else value[:end]

    return tf.nest.map_structure(cut, outputs)


def with_unknown_rows(batch: Any) -> Any:
    """Returns a batch of a traced function whose shapes do not tell the number of examples.

    Of batches that a program cuts itself the shapes of some shards change and those of others do not, as of 4 and then 1
    example on 3 replicas. A replica that knows its number, and one that does not, would add up other tensors.
    """

    def unknown(value: Any) -> Any:
        is_dense = tf.is_symbolic_tensor(value) and value.shape.rank
        return tf.compat.v1.placeholder_with_default(value, [None, *value.shape[1:]]) if is_dense else value

    return tf.nest.map_structure(unknown, batch)


def rows_of(batch: Any) -> int | None:
    """Returns the number of examples of a batch; None if no shape tells it, as in a function for batches of all sizes."""
    shapes = [value.shape for value in tf.nest.flatten(batch) if isinstance(value, tf.Tensor)]
    return next((shape[0] for shape in shapes if shape.rank), None)
