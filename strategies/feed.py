"""Batches that the chief reads and workers take: each exactly once, in order, to whichever worker is free.

The chief iterates the dataset itself, so anything that `fit` accepts works (numpy, generators, PyDataset, tf.data with Python
functions, none of which could be rebuilt on another machine), and an epoch is exactly one pass whatever the workers' speeds.
"""

import functools
from collections import deque
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies._private import DistributedDataset, TFEpochIterator


def install() -> None:
    """Lets a `FedDataset` know `steps_per_epoch`, so that no batch of the next epoch is given out in this one."""
    if getattr(TFEpochIterator, "_tfdist_installed", False):
        return
    TFEpochIterator._tfdist_installed = True
    init = TFEpochIterator.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if isinstance(self._distributed_dataset, FedDataset):
            self._distributed_dataset.steps_per_epoch = self.steps_per_epoch

    TFEpochIterator.__init__ = __init__


class Batch(tf.distribute.DistributedValues):
    """One batch on the chief, still to be sent to a worker.

    Attributes:
        values: the tensors as the dataset yielded them.
        feed: the iterator that it came from.
        result: what a function scheduled ahead for it will give, or None.
    """

    def __init__(self, values: Any, feed: "Feed") -> None:
        self.values = values
        self.feed = feed
        self.result: Any = None


class Feed(Iterator[Batch]):
    """Reads a dataset on the chief, and may read ahead."""

    def __init__(self, dataset: tf.data.Dataset, owner: "FedDataset") -> None:
        self.owner = owner
        self._dataset = dataset
        self._iterator: Iterator[Any] | None = None
        self._ahead: deque[Batch] = deque()
        self._taken = 0

    def __next__(self) -> Batch:
        return self._ahead.popleft() if self._ahead else self._read()

    def take(self, count: int) -> list[Any]:
        """The tensors of the next `count` batches; fewer, or none, at the end of the data or of `steps_per_epoch`."""
        if self.owner.steps_per_epoch is not None and self._taken >= self.owner.steps_per_epoch:
            return []  # What follows belongs to the next epoch.
        self._taken += count
        return [batch.values for _, batch in zip(range(count), self, strict=False)]

    def begin_epoch_if_over(self) -> None:
        """Lets `take` go on when the batches of `steps_per_epoch` have all been taken."""
        if self.owner.steps_per_epoch is not None and self._taken >= self.owner.steps_per_epoch:
            self._taken = 0

    def give_back(self, batch: Batch) -> None:
        """Puts the batch that was just taken back, to be the next again."""
        self._ahead.appendleft(batch)

    def peek(self, count: int) -> list[Batch]:
        """The next `count` batches without taking them; fewer where the dataset ends."""
        while len(self._ahead) < count:
            try:
                self._ahead.append(self._read())
            except StopIteration:
                break
        return list(self._ahead)[:count]

    def _read(self) -> Batch:
        if self._iterator is None:  # Keras makes one iterator more than it has epochs: do not start reading for it.
            self._iterator = iter(self._dataset.prefetch(tf.data.AUTOTUNE))
        try:
            batch = Batch(next(self._iterator), self)
        except StopIteration:
            if self.owner.is_empty:
                raise ValueError("the dataset has no batches; there is nothing to learn the shapes of the model from") from None
            raise
        self.owner.is_empty = False
        return batch


class FedDataset(DistributedDataset):
    """What `experimental_distribute_dataset` gives under ParameterServer.

    Passed to `ClusterCoordinator.create_per_worker_dataset` it is what TensorFlow made. Iterated on the chief, which TensorFlow
    refuses, it yields `Batch`es.
    """

    _fed_dataset: tf.data.Dataset
    _unused_feed: Feed | None
    is_empty: bool
    """Whether no iteration has yielded a batch yet."""
    steps_per_epoch: int | None
    """How many batches Keras takes for one epoch; None where it takes all."""

    @classmethod
    def over(cls, distributed: Any, dataset: tf.data.Dataset) -> "FedDataset":
        """Makes `distributed`, TensorFlow's own distributed form of `dataset`, one that can also be iterated."""
        fed: FedDataset = cls.__new__(cls)
        fed.__dict__.update(distributed.__dict__)
        fed._fed_dataset = dataset
        fed._unused_feed = None
        fed.is_empty = True
        fed.steps_per_epoch = None
        return fed

    def __iter__(self) -> Any:
        if tf.inside_function():
            return super().__iter__()
        feed, self._unused_feed = self._unused_feed or Feed(self._fed_dataset, self), None
        return feed

    def reuse(self, feed: Feed) -> None:
        """Makes `feed`, of which nothing was used, the next iteration: a generator could not be started again."""
        self._unused_feed = feed
