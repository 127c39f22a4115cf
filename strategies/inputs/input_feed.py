"""Batches that the chief reads and sends to workers: each batch once, in order, to the next worker group that is free.

The chief iterates the dataset itself. So all data that `fit` accepts works (numpy, generators, PyDataset, tf.data with Python
functions, none of which another machine could rebuild), and an epoch is exactly one pass at any speed of the workers.
"""

from collections import deque
from typing import Any

import tensorflow as tf

from tfdist.strategies.inputs.batches import without_optionals
from tfdist.strategies.inputs.source import BatchIterator, BatchSource, EmptyDatasetError


class Batch:
    """One batch on the chief, before it is sent to a worker.

    Attributes:
        values: the tensors that the dataset yields.
        feed: the iterator that has read it.
        result: the execution that computes its output ahead of Keras, or None.
    """

    def __init__(self, values: Any, feed: "InputFeed") -> None:
        self.values = values
        self.feed = feed
        self.result: Any = None


class InputFeed(BatchIterator):
    """Reads a dataset on the chief, ahead of Keras if asked. `take` returns tensors, `next` a `Batch`."""

    owner: "FedDataset"

    def __init__(self, dataset: tf.data.Dataset, owner: "FedDataset") -> None:
        super().__init__(owner)
        # Made at once, as Keras does: every iterator of a shuffled dataset has another order.
        self._iterator = iter(dataset.prefetch(tf.data.AUTOTUNE))
        self._ahead: deque[Batch] = deque()

    def __next__(self) -> Batch:
        return self._ahead.popleft() if self._ahead else self._read()

    def peek(self, count: int) -> list[Batch]:
        """Returns the next `count` batches without taking them; fewer at the end of the dataset."""
        while len(self._ahead) < count:
            try:
                self._ahead.append(self._read())
            except StopIteration:
                break
        return list(self._ahead)[:count]

    def _next_batches(self, count: int) -> list[Any]:
        return [batch.values for _, batch in zip(range(count), self, strict=False)]

    def _read(self) -> Batch:
        try:
            batch = Batch(next(self._iterator), self)
        except StopIteration:
            if self.owner.is_empty:
                raise EmptyDatasetError from None
            raise
        self.owner.is_empty = False
        return batch


class FedDataset(BatchSource):
    """A dataset that the chief reads. It yields `Batch`es.

    Attributes:
        is_empty: whether no iteration has yielded a batch yet.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self.element_spec = dataset.element_spec
        self.is_empty = True
        self._dataset = dataset
        self._unused_feed: InputFeed | None = None

    def __iter__(self) -> InputFeed:
        feed, self._unused_feed = self._unused_feed or InputFeed(self._dataset, self), None
        return feed

    def example(self) -> Any:
        """See `BatchSource`. The first batch, which stays the first: a generator cannot start again."""
        self._unused_feed = iter(self)
        (batch,) = self._unused_feed.peek(1)
        return without_optionals(batch.values)
