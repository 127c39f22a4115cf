"""Updates of a `SplitVariable`: an optimizer updates each shard by itself, where it is."""

from typing import Any

import tensorflow as tf

from tfdist.strategies.model_parallel.split_tensor import SplitTensor, rows_by_part
from tfdist.strategies.model_parallel.split_variable import SplitVariable
from tfdist.strategies.variable_base import shard_scope


def on_shards(update: Any, variable: SplitVariable, function: Any, args: Any, kwargs: Any, group: Any) -> Any:
    """Updates each shard by itself, on its device. In the function the variables stand for their shards."""
    results = []
    split = [for_shards(value, variable) for value in args]
    for number, shard in enumerate(variable.shards):
        with shard_scope(number):
            own = tuple(values[number] for values in split)
            results.append(update(shard, lambda _, *given, **named: function(variable, *given, **named), own, kwargs, group))
    return results


def for_shards(value: Any, variable: SplitVariable) -> Any:
    """Returns what each shard gets of an argument of an update."""
    if isinstance(value, SplitTensor) and variable.is_split_as(value):
        return value.parts
    if isinstance(value, tf.IndexedSlices):
        return _slices_for_shards(value, variable)
    if isinstance(value, SplitTensor):
        value = value.whole()
    is_whole = isinstance(value, tf.Tensor) and value.shape.rank == variable.shape.rank
    if is_whole and value.shape.is_compatible_with(variable.shape):
        return variable.own_pieces(value)
    return [value] * len(variable.shards)


def _slices_for_shards(slices: tf.IndexedSlices, variable: SplitVariable) -> list[tf.IndexedSlices]:
    """Returns the slices of each shard of a table."""
    if variable.axis:
        return [
            tf.IndexedSlices(values, slices.indices, tf.constant(part.shape.as_list()))
            for values, part in zip(variable.own_pieces(slices.values), variable.shards, strict=True)
        ]
    by_part = rows_by_part(slices.indices, variable.shape[0], variable.count)[variable.own.start : variable.own.stop]
    return [
        tf.IndexedSlices(tf.gather(slices.values, chosen), local, tf.constant(part.shape.as_list()))
        for (chosen, local), part in zip(by_part, variable.shards, strict=True)
    ]
