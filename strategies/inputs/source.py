"""The interface of what Keras iterates in place of the user's dataset."""

import abc
from collections.abc import Iterator
from typing import Any


class EmptyDatasetError(ValueError):
    """The dataset has no batches."""

    def __init__(self) -> None:
        super().__init__("the dataset has no batches; there is nothing to learn the shapes of the model from")


class BatchSource(abc.ABC):
    """A dataset as a strategy hands it to Keras' loop.

    Attributes:
        steps_per_epoch: how many batches Keras takes for one epoch, in whole executions; None if it takes all.
        batches_per_epoch: how many batches an epoch has, as Keras knows or the last epoch had; None before the first, if Keras
            does not know.
        element_spec: the nested `tf.TypeSpec` of a batch.
    """

    steps_per_epoch: int | None = None
    batches_per_epoch: int | None = None
    element_spec: Any
    _unused: Any = None

    @property
    def has_unused(self) -> bool:
        """Whether `example` has begun an iteration, with which the next one goes on."""
        return self._unused is not None

    @abc.abstractmethod
    def __iter__(self) -> "BatchIterator":
        """Starts an iteration."""

    @abc.abstractmethod
    def example(self) -> Any:
        """Returns nested tensors or specs with the shapes of a batch. It takes no batch away from the next iteration.

        Raises:
            EmptyDatasetError: if the source is empty.
        """


class BatchIterator(Iterator[Any]):
    """Iterates a `BatchSource`, and counts the batches of an epoch.

    Keras iterates infinite data by one iterator over all epochs, with `steps_per_epoch`. A strategy that takes batches ahead of
    Keras must not take those of the next epoch.

    Attributes:
        owner: the source.
        taken: how many batches of the epoch `take` has returned.
    """

    def __init__(self, owner: BatchSource) -> None:
        self.owner = owner
        self.taken = 0

    def take(self, count: int) -> list[Any]:
        """Returns the next `count` batches; fewer, or none, at the end of the data or of `steps_per_epoch`."""
        if self.owner.steps_per_epoch is not None:
            count = min(count, self.owner.steps_per_epoch - self.taken)
        batches = self._next_batches(count)
        self.taken += len(batches)
        if len(batches) < count:
            self.owner.batches_per_epoch = self.taken
        return batches

    def begin_epoch_if_over(self) -> None:
        """Lets `take` go on after the last of `steps_per_epoch` batches."""
        if self.owner.steps_per_epoch is not None and self.taken >= self.owner.steps_per_epoch:
            self.taken = 0

    def like_next(self) -> Any:
        """Returns a batch like the next one, without taking it; None if there is none, or this process does not read it."""
        return None

    @abc.abstractmethod
    def _next_batches(self, count: int) -> list[Any]:
        """Returns the next `count` batches in the form that the step functions take; fewer at the end of the data."""
