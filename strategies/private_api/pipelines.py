"""The steps of which a `tf.data.Dataset` is made."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api.checks import need, need_attributes, need_function

_CacheDataset: Any = need("tensorflow.python.data.ops.cache_op", "CacheDataset")
_RepeatDataset: Any = need("tensorflow.python.data.ops.repeat_op", "_RepeatDataset")
_ShuffleDataset: Any = need("tensorflow.python.data.ops.shuffle_op", "_ShuffleDataset")
need_function(tf.data.Dataset, "_inputs", "self", "calls")
need_attributes(need("tensorflow.python.data.ops.map_op", "_ParallelMapDataset"), "_deterministic")


def has_memory_cache(dataset: tf.data.Dataset) -> bool:
    """Returns whether a dataset keeps elements in the memory of this process, by `cache()` at any step."""
    return any(isinstance(each, _CacheDataset) and not each._filename.numpy() for each in _steps_of(dataset))


def repeats_shuffled(dataset: tf.data.Dataset) -> bool:
    """Returns whether a dataset repeats data that it shuffles: each repetition that an iterator begins gets another order."""
    repeated = (each for each in _steps_of(dataset) if isinstance(each, _RepeatDataset))
    return any(isinstance(step, _ShuffleDataset) for each in repeated for step in _steps_of(each))


def has_no_order(dataset: tf.data.Dataset) -> bool:
    """Returns whether tf.data may yield the elements of a dataset in another order each time (`deterministic=False`)."""
    is_free = any(getattr(each, "_deterministic", None) == "false" for each in _steps_of(dataset))
    return is_free or dataset.options().deterministic is False


def _steps_of(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields a dataset and all that it is made of, without those that functions make of its elements."""
    yield dataset
    for source in dataset._inputs():
        yield from _steps_of(source)
