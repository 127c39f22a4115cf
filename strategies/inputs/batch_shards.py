"""Batches of which every replica takes its own part: the input of strategies whose replicas step together.

Every task reads the same dataset in the same order and cuts each batch, which is the global one, into as many parts as there
are replicas, as equal as they can be: of 10 examples 4 replicas take 3, 3, 2 and 2, of 3 examples the fourth takes none. So an
epoch is one pass over the dataset, whatever it is made of and whether or not its size divides.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import regroup


class Layout:
    """Which replicas of all are on this task.

    Attributes:
        replicas: number of replicas of the cluster.
        local: indices of those on this task, contiguous.
    """

    def __init__(self, replicas: int, local: range) -> None:
        self.replicas = replicas
        self.local = local

    def split(self, batch: Any) -> dict[str, Any]:
        """Cuts a batch.

        Args:
            batch: nested tensors with examples along their first dimension; scalars and None are given to every replica.

        Returns:
            `parts`, a tuple with one batch per replica of this task, and `examples`, the size of the whole batch, int32.
        """
        examples = examples_of(batch)
        size, longer = examples // self.replicas, examples % self.replicas

        def begin(replica: int) -> tf.Tensor:
            return replica * size + tf.minimum(replica, longer)

        def part(replica: int) -> Any:
            return tf.nest.map_structure(lambda v: _rows(v, begin(replica), begin(replica + 1)), batch)

        return {"parts": tuple(part(replica) for replica in self.local), "examples": examples}

    def shares(self, examples: tf.Tensor) -> list[tf.Tensor]:
        """The share of each replica of this task in a batch of so many examples, as `split` cuts it; float32, 0 of none."""
        size, longer = examples // self.replicas, examples % self.replicas
        sizes = [size + tf.cast(replica < longer, tf.int32) for replica in self.local]
        return [tf.math.divide_no_nan(tf.cast(n, tf.float32), tf.cast(examples, tf.float32)) for n in sizes]


def _has_rows(value: Any) -> bool:
    return value is not None and not isinstance(value, tf.experimental.Optional) and value.shape.rank != 0


def examples_of(batch: Any) -> tf.Tensor:
    """Number of examples of a batch, or of one replica's part, int32. Raises ValueError where no tensor has any dimension."""
    for value in tf.nest.flatten(batch):
        if _has_rows(value):
            if isinstance(value, tf.RaggedTensor):
                return tf.cast(value.nrows(), tf.int32)
            if isinstance(value, tf.SparseTensor):
                return tf.cast(value.dense_shape[0], tf.int32)
            return tf.shape(value)[0]
    raise ValueError("a batch has no tensor with a first dimension, along which its examples could be shared out to replicas")


def _rows(value: Any, begin: tf.Tensor, end: tf.Tensor) -> Any:
    if not _has_rows(value):
        return value
    if not isinstance(value, tf.SparseTensor):
        return value[begin:end]
    shape = value.dense_shape
    first = tf.concat([[tf.cast(begin, tf.int64)], tf.zeros_like(shape[1:])], axis=0)
    return tf.sparse.slice(value, first, tf.concat([[tf.cast(end - begin, tf.int64)], shape[1:]], axis=0))


class ShardedDataset(tf.distribute.DistributedDataset):
    """A dataset whose iterators yield the parts of this task's replicas."""

    def __init__(self, dataset: tf.data.Dataset, layout: Layout) -> None:
        self._dataset = dataset

        def split(*batch: Any) -> Any:  # `map` gives the components of a tuple one by one.
            return layout.split(batch if isinstance(dataset.element_spec, tuple) else batch[0])

        self._split = dataset.map(tf.autograph.experimental.do_not_convert(split)).prefetch(tf.data.AUTOTUNE)
        self._unused: ShardedIterator | None = None

    def __iter__(self) -> "ShardedIterator":
        unused, self._unused = self._unused, None
        return unused or ShardedIterator(self._split)

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of the whole batches."""
        return self._dataset.element_spec

    @property
    def cardinality(self) -> Any:
        """Number of batches, or one of tf.data's negative constants."""
        return self._dataset.cardinality()

    def example(self) -> Any:
        """Tensors or specs that have the shapes of a batch, for building a model. Takes no batch away from the iteration."""
        leaves = [leaf for leaf in tf.nest.flatten(self.element_spec) if isinstance(leaf, tf.TensorSpec)]
        known = len(leaves) == len(tf.nest.flatten(self.element_spec))
        if known and all(leaf.shape.rank is not None and None not in leaf.shape[1:] for leaf in leaves):
            return self.element_spec
        self._unused = iter(self)
        part = self._unused.peek()["parts"][0]
        return tf.nest.map_structure(lambda v: None if isinstance(v, tf.experimental.Optional) else v, part)


class ShardedIterator:
    """Iterates a `PartsDataset`; of each batch it yields what `tf.distribute` iterators do, values per replica.

    The step functions take `take()` instead, or read `elements` themselves.
    """

    def __init__(self, split: tf.data.Dataset) -> None:
        self.elements = iter(split)
        self.element_spec = split.element_spec
        self.ahead: deque[Any] = deque()

    def __iter__(self) -> "ShardedIterator":
        return self

    def __next__(self) -> Any:
        return per_replica(self.take()["parts"])

    def take(self) -> Any:
        """The next element as `Layout.split` made it. Raises StopIteration at the end."""
        return self.ahead.popleft() if self.ahead else next(self.elements)

    def peek(self) -> Any:
        """The next element, which stays the next. Raises ValueError where there is none."""
        try:
            self.ahead.append(self.take())
        except StopIteration:
            raise ValueError("the dataset has no batches; there is nothing to learn the shapes of the model from") from None
        return self.ahead[0]


def per_replica(parts: Sequence[Any]) -> Any:
    """One batch per replica of this task as one batch of TensorFlow's `PerReplica` values; None stays None."""
    return tf.nest.map_structure(lambda *v: None if v[0] is None else regroup(v, always_wrap=True), *parts)


def at_least_one(part: Any) -> Any:
    """The part of a replica with one example of zeros where it has none: nothing is then a mean over no examples, which is NaN.

    Ragged and sparse values stay empty.
    """

    def fill(value: Any) -> Any:
        if not isinstance(value, tf.Tensor) or not _has_rows(value) or (value.shape[0] or 0) > 0:
            return value

        def zeros() -> tf.Tensor:
            return tf.zeros(tf.concat([[1], tf.shape(value)[1:]], axis=0), value.dtype)

        filled = tf.cond(tf.shape(value)[0] > 0, lambda: value, zeros)
        filled.set_shape([None, *value.shape[1:]])
        return filled

    return tf.nest.map_structure(fill, part)


def as_tensors(batch: Any) -> Any:
    """A batch of numpy arrays, lists or tensors as tensors; None stays None."""
    return tf.nest.map_structure(lambda v: None if v is None else tf.convert_to_tensor(v), batch)


def concatenated(outputs: Sequence[Any]) -> Any:
    """Outputs for several batches or parts, one after the other."""
    return outputs[0] if len(outputs) == 1 else tf.nest.map_structure(lambda *o: tf.concat(o, axis=0), *outputs)
