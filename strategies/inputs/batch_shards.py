"""Batches of which every replica takes its shard: the input of strategies whose replicas step together.

Every task reads the same dataset in the same order. It cuts each batch, which is the global batch, into one shard per replica,
of sizes that differ by one example at most: of 10 examples 4 replicas take 3, 3, 2 and 2. Of 3 examples the fourth replica
takes none: it computes the last one again, and its results do not count. So an epoch is one pass over the dataset, for any kind
of dataset, even if its size does not divide.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.inputs.batches import builds_models, named_leaves, prefetched, without_optionals
from tfdist.strategies.inputs.source import BatchIterator, BatchSource, EmptyDatasetError
from tfdist.strategies.private_api import regroup


class Layout:
    """The replicas of the cluster, and which of them are on this task.

    Attributes:
        replicas: the number of replicas of the cluster.
        local: the indices of those on this task, contiguous.
    """

    def __init__(self, replicas: int, local: range) -> None:
        self.replicas = replicas
        self.local = local

    def split(self, batch: Any) -> dict[str, Any]:
        """Cuts a batch into shards.

        Args:
            batch: nested tensors with examples along their first dimension; every replica gets scalars and None whole.

        Returns:
            `shards`, a tuple with one shard per replica of this task, and `examples`, the size of the whole batch, int32.

        Raises:
            ValueError: if no tensor of the batch has a first dimension, or two have different numbers of rows. If these are not
                known yet in a function, it asserts that they are equal.
        """
        examples = examples_of(batch)
        if self.replicas == 1:
            return {"shards": (batch,), "examples": examples}
        with tf.control_dependencies(_assertions_of_equal_rows(batch)):
            examples = tf.identity(examples)
        size, longer = examples // self.replicas, examples % self.replicas

        def begin(replica: int) -> tf.Tensor:
            return replica * size + tf.minimum(replica, longer)

        def shard(replica: int) -> Any:
            # Without examples a replica repeats a real one. Layers may refuse invented ones, such as the empty string.
            first = tf.maximum(tf.minimum(begin(replica), examples - 1), 0)
            end = tf.maximum(begin(replica + 1), tf.minimum(first + 1, examples))
            return tf.nest.map_structure(lambda v: _rows(v, first, end), batch)

        return {"shards": tuple(shard(replica) for replica in self.local), "examples": examples}

    def counts(self, examples: tf.Tensor) -> list[tf.Tensor]:
        """Returns how many of `examples` examples count on each replica of this task, int32."""
        size, longer = examples // self.replicas, examples % self.replicas
        return [size + tf.cast(replica < longer, tf.int32) for replica in self.local]

    def shares(self, examples: tf.Tensor) -> list[tf.Tensor]:
        """Returns which part of a batch of `examples` examples each replica of this task gets; float32, 0 to 1."""
        whole = tf.cast(examples, tf.float32)
        return [tf.math.divide_no_nan(tf.cast(count, tf.float32), whole) for count in self.counts(examples)]

    def local_index(self) -> int:
        """Returns the number, among this task's replicas, of the replica whose context is the current one."""
        number = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
        return int(number) - self.local.start


_ONE_ROW_PER_EXAMPLE = (
    "replicas share the rows of a batch, so each of its tensors needs one row per example. Give what belongs to one example a "
    "dimension of its own, as `dataset.batch(k)` does before `zip` and `batch`, or put it into a ragged tensor; keep what all "
    "examples share, such as a table, in the model, or train in one process"
)


def _has_rows(value: Any) -> bool:
    return value is not None and not isinstance(value, tf.experimental.Optional) and value.shape.rank != 0


def examples_of(batch: Any) -> tf.Tensor:
    """Returns the number of examples of a batch or shard, int32.

    Raises:
        ValueError: if no tensor of the batch has a first dimension.
    """
    for value in tf.nest.flatten(batch):
        if _has_rows(value):
            return _count_of_rows(value)
    raise ValueError("a batch has no tensor with a first dimension, along which its examples could be split among the replicas")


def _count_of_rows(value: Any) -> tf.Tensor:
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int32)
    if isinstance(value, tf.SparseTensor):
        return tf.cast(value.dense_shape[0], tf.int32)
    return tf.shape(value)[0]


def _assertions_of_equal_rows(batch: Any) -> list[Any]:
    """Returns assertions that each tensor of a batch has as many rows as the first, where no shape tells it.

    Replicas that shared a batch by the rows of one tensor would drop rows of the others.
    """
    (first_name, first), *others = [(name, value) for name, value in named_leaves(batch) if _has_rows(value)]
    assertions = []
    for name, value in others:
        is_known = first.shape[0] is not None and value.shape[0] is not None
        if is_known and first.shape[0] != value.shape[0]:
            raise ValueError(
                f"{first_name} has {first.shape[0]} rows and {name} has {value.shape[0]}, but {_ONE_ROW_PER_EXAMPLE}"
            )
        if not is_known:
            rows, others_rows = _count_of_rows(first), _count_of_rows(value)
            message = [f"{first_name} has as many rows:", rows, f"{name} has:", others_rows, f"But {_ONE_ROW_PER_EXAMPLE}"]
            assertions.append(tf.debugging.Assert(tf.equal(rows, others_rows), message))
    return assertions


def _rows(value: Any, begin: tf.Tensor, end: tf.Tensor) -> Any:
    if not _has_rows(value):
        return value
    if not isinstance(value, tf.SparseTensor):
        return value[begin:end]
    shape = value.dense_shape
    first = tf.concat([[tf.cast(begin, tf.int64)], tf.zeros_like(shape[1:])], axis=0)
    return tf.sparse.slice(value, first, tf.concat([[tf.cast(end - begin, tf.int64)], shape[1:]], axis=0))


class SplitBatch(tuple[Any, ...]):
    """A batch that is cut into shards, as values per replica: the tuple that Keras passes to the predict function.

    Attributes:
        element: what `Layout.split` returned.
    """

    element: dict[str, Any]

    @classmethod
    def of(cls, element: dict[str, Any]) -> "SplitBatch":
        """Returns the batch of an element."""
        values = per_replica(element["shards"])
        batch = cls(values if isinstance(values, tuple) else (values,))
        batch.element = element
        return batch


class ShardedDataset(BatchSource):
    """A dataset whose iterators yield the shards of this task's replicas."""

    def __init__(self, dataset: tf.data.Dataset, layout: Layout, watch: Callable[[tf.Tensor, Any], None] | None = None) -> None:
        """Cuts the batches of a dataset.

        Args:
            dataset: it yields whole batches.
            layout: the replicas.
            watch: called while the function is traced that cuts a batch, with the number of the batch, int64, and the batch.
        """
        self.element_spec = dataset.element_spec

        def split(number: tf.Tensor, batch: Any) -> Any:
            if watch is not None:
                watch(number, batch)
            return layout.split(batch)

        self._split = prefetched(dataset.enumerate().map(tf.autograph.experimental.do_not_convert(split)))

    def __iter__(self) -> "ShardedIterator":
        unused, self._unused = self._unused, None
        return unused or ShardedIterator(self, self._split)

    def example(self) -> Any:
        """See `BatchSource`: the spec if it has all dimensions but the first, else the first batch."""
        spec = without_optionals(self.element_spec)
        if builds_models(spec):
            return spec
        self._unused = iter(self)
        return without_optionals(self._unused.peek()["shards"][0])


class ShardedIterator(BatchIterator):
    """Iterates a `ShardedDataset`. `take` returns elements as `Layout.split` makes them, `next` each as a `SplitBatch`.

    Attributes:
        elements: the dataset iterator itself, for functions that read it. An element that `peek` has read is missing there.
        element_spec: the nested `tf.TypeSpec` of the elements.
        peeked: the `tf.experimental.Optional` of what `peek` has read and nobody has taken; without a value if there is none.
    """

    def __init__(self, owner: ShardedDataset, split: tf.data.Dataset) -> None:
        super().__init__(owner)
        self.elements = iter(split)
        self.element_spec = split.element_spec
        self._peeked: list[Any] = []  # At most one.
        self._nothing = tf.experimental.Optional.empty(self.element_spec)

    @property
    def peeked(self) -> Any:
        """See the class."""
        if not self._peeked:
            return self._nothing
        return tf.function(tf.experimental.Optional.from_value, input_signature=[self.element_spec])(self._peeked[0])

    def drop_peeked(self) -> None:
        """Says that what `peeked` has is taken."""
        self._peeked.clear()

    def __next__(self) -> "SplitBatch":
        return SplitBatch.of(self._next_element())

    def peek(self) -> Any:
        """Returns the next element and leaves it the next.

        Raises:
            EmptyDatasetError: if there is none.
        """
        try:
            self._peeked = [self._next_element()]
        except StopIteration:
            raise EmptyDatasetError from None
        return self._peeked[0]

    def _next_batches(self, count: int) -> list[Any]:
        elements: list[Any] = []
        try:
            while len(elements) < count:
                elements.append(self._next_element())
        except StopIteration:
            pass
        return elements

    def _next_element(self) -> Any:
        return self._peeked.pop() if self._peeked else next(self.elements)


def per_replica(shards: Sequence[Any]) -> Any:
    """Returns one nested structure of `PerReplica` values, given one structure per replica of this task; None stays None."""
    return tf.nest.map_structure(lambda *v: None if v[0] is None else regroup(v, always_wrap=True), *shards)


def at_least_one(shard: Any) -> Any:
    """Returns the shard with one example of zeros in place of none: a mean over no examples would be NaN.

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

    return tf.nest.map_structure(fill, shard)
