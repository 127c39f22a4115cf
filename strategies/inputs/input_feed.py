"""Batches that the chief reads and sends to workers: each batch once, in order, to the next worker group that is free.

The chief iterates the dataset itself. So all data that `fit` accepts works (numpy, generators, PyDataset, tf.data with Python
functions, none of which another machine could rebuild), and an epoch is exactly one pass at any speed of the workers.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.inputs.batches import builds_models, prefetched, without_optionals
from tfdist.strategies.inputs.source import BatchIterator, BatchSource, EmptyDatasetError
from tfdist.strategies.private_api import next_tensors


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
        self._iterator = iter(prefetched(dataset))
        self._packer = _packer_of(dataset.element_spec) if tf.config.experimental.get_synchronous_execution() else None
        self._ahead: deque[Batch] = deque()
        self._error: Exception | None = None

    def __next__(self) -> Batch:
        if tf.inside_function():
            raise ValueError(
                "a function of the model's own make_train_function, make_test_function or make_predict_function reads the "
                "batches; workers run the function that Keras' own method makes, so override train_step, test_step or "
                "predict_step, or call super().make_train_function()"
            )
        batch = self._ahead.popleft() if self._ahead else self._read()
        self.taken += 1
        return batch

    def peek(self, count: int) -> list[Batch]:
        """Returns the next `count` batches without taking them; fewer at the end of the dataset, and where it raises.

        None after the last of `steps_per_epoch`: they may not be there yet.

        Raises:
            Exception: what the dataset raises in place of the next batch. The batches before it are trained first.
        """
        if self.owner.steps_per_epoch is not None:
            count = max(0, min(count, self.owner.steps_per_epoch - self.taken))
        while len(self._ahead) < count:
            try:
                self._ahead.append(self._read())
            except StopIteration:
                break
            except Exception as error:
                if not self._ahead:
                    raise
                self._error = error
                break
        return list(self._ahead)[:count]

    def like_next(self) -> Any:
        """See `BatchIterator`: the next batch."""
        return next((without_optionals(batch.values) for batch in self.peek(1)), None)

    def _next_batches(self, count: int) -> list[Any]:
        return [self._ahead.popleft().values for _ in self.peek(count)]

    def _read(self) -> Batch:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        try:
            batch = Batch(self._next_values(), self)
        except StopIteration:
            if self.owner.is_empty:
                raise EmptyDatasetError from None
            raise
        self.owner.is_empty = False
        return batch

    def _next_values(self) -> Any:
        if self._packer is None:
            return next(self._iterator)
        # For a batch of two small tensors, TensorFlow's search for their structure takes twice as long as to get them.
        return self._packer(iter(next_tensors(self._iterator)))


def _packer_of(spec: Any) -> Callable[[Iterator[Any]], Any] | None:
    """Returns a function from the tensors of an element, in the order of tf.data, to the element.

    Returns:
        None if an element has anything but tensors in plain tuples and dicts.
    """
    if type(spec) is tf.TensorSpec:
        return next
    if type(spec) not in (tuple, dict):
        return None
    names = sorted(spec) if type(spec) is dict else range(len(spec))
    found = [_packer_of(spec[name]) for name in names]
    packers = [packer for packer in found if packer is not None]
    if len(packers) < len(found):
        return None
    if type(spec) is tuple:
        return lambda each: tuple([packer(each) for packer in packers])
    order = list(spec)

    def pack(each: Iterator[Any]) -> Any:
        values = {name: packer(each) for name, packer in zip(names, packers, strict=True)}
        return {name: values[name] for name in order}

    return pack


class FedDataset(BatchSource):
    """A dataset that the chief reads. It yields `Batch`es.

    Attributes:
        is_empty: whether no iteration has yielded a batch yet.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self.element_spec = dataset.element_spec
        self.is_empty = True
        self._dataset = dataset

    def __iter__(self) -> InputFeed:
        unused, self._unused = self._unused, None
        return unused or InputFeed(self._dataset, self)

    def example(self) -> Any:
        """See `BatchSource`. If it is the first batch, it stays the first: a generator cannot start again."""
        spec = without_optionals(self.element_spec)
        if builds_models(spec):
            return spec
        self._unused = iter(self)
        return next((without_optionals(batch.values) for batch in self._unused.peek(1)), spec)
