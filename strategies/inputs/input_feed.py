"""Batches that the chief reads and workers take: each exactly once, in order, to whichever worker is free.

The chief iterates the dataset itself, so anything that `fit` accepts works (numpy, generators, PyDataset, tf.data with Python
functions, none of which could be rebuilt on another machine), and an epoch is exactly one pass whatever the workers' speeds.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


class Batch:
    """One batch on the chief, still to be sent to a worker.

    Attributes:
        values: the tensors as the dataset yielded them.
        feed: the iterator that it came from.
        result: what a function scheduled ahead for it will give, or None.
    """

    def __init__(self, values: Any, feed: "InputFeed") -> None:
        self.values = values
        self.feed = feed
        self.result: Any = None


class InputFeed(Iterator[Batch]):
    """Reads a dataset on the chief, and may read ahead."""

    def __init__(self, dataset: tf.data.Dataset, owner: "FedDataset") -> None:
        self.owner = owner
        # Made now although it may not be used, as Keras does it: a shuffled dataset is in another order for each that is made.
        self._iterator = iter(dataset.prefetch(tf.data.AUTOTUNE))
        self._ahead: deque[Batch] = deque()
        self._taken = 0

    def __next__(self) -> Batch:
        return self._ahead.popleft() if self._ahead else self._read()

    def take(self, count: int) -> list[Any]:
        """The tensors of the next `count` batches; fewer, or none, at the end of the data or of `steps_per_epoch`."""
        if self.owner.steps_per_epoch is not None:
            count = min(count, self.owner.steps_per_epoch - self._taken)  # What follows belongs to the next epoch.
        self._taken += count
        return [batch.values for _, batch in zip(range(count), self, strict=False)]

    def begin_epoch_if_over(self) -> None:
        """Lets `take` go on when the batches of `steps_per_epoch` have all been taken."""
        if self.owner.steps_per_epoch is not None and self._taken >= self.owner.steps_per_epoch:
            self._taken = 0

    def peek(self, count: int) -> list[Batch]:
        """The next `count` batches without taking them; fewer where the dataset ends."""
        while len(self._ahead) < count:
            try:
                self._ahead.append(self._read())
            except StopIteration:
                break
        return list(self._ahead)[:count]

    def _read(self) -> Batch:
        try:
            batch = Batch(next(self._iterator), self)
        except StopIteration:
            if self.owner.is_empty:
                raise ValueError("the dataset has no batches; there is nothing to learn the shapes of the model from") from None
            raise
        self.owner.is_empty = False
        return batch


class FedDataset:
    """What Keras iterates under a strategy whose workers are elsewhere: it yields `Batch`es.

    Attributes:
        steps_per_epoch: how many batches Keras takes for one epoch, whole executions; None where it takes all.
        batches_per_epoch: how many an epoch has; None where that is not known before the first.
        element_spec: as that of the dataset.
        is_empty: whether no iteration has yielded a batch yet.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self.steps_per_epoch: int | None = None
        self.batches_per_epoch: int | None = None
        self.element_spec = dataset.element_spec
        self.is_empty = True
        self._dataset = dataset
        self._unused_feed: InputFeed | None = None

    def __iter__(self) -> InputFeed:
        feed, self._unused_feed = self._unused_feed or InputFeed(self._dataset, self), None
        return feed

    def example(self) -> Any:
        """The tensors of the first batch, which stays the first: a generator could not be started again.

        Raises:
            ValueError: where there is none.
        """
        self._unused_feed = iter(self)
        (batch,) = self._unused_feed.peek(1)
        return tf.nest.map_structure(lambda v: None if isinstance(v, tf.experimental.Optional) else v, batch.values)
