"""Data that each worker group reads itself: no batch passes through the chief, whose network would limit the training.

`strategy.distribute_datasets_from_function` is TensorFlow's interface for it. Its result goes to `fit` with `steps_per_epoch`.
"""

import copy
import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.inputs.source import BatchIterator, BatchSource

_log = logging.getLogger("tfdist")


class WorkerBatch:
    """A batch that the worker group which trains on it reads.

    Attributes:
        data: the source of the batch.
    """

    def __init__(self, data: "WorkerInput") -> None:
        self.data = data


class WorkerInput(BatchSource):
    """A dataset per worker group. It yields `WorkerBatch`es; `steps_per_epoch` bounds an epoch.

    TensorFlow frees the iterators, and what they have read ahead, with the handles: when this object is gone.

    Attributes:
        handles: by group, the handle of its iterator, on the task that reads.
        makers: by group, the function that gives the dataset to an iterator.
    """

    def __init__(self, dataset_fn: Callable[[Any], tf.data.Dataset], groups: int, first: tf.data.Dataset) -> None:
        self.element_spec = first.element_spec
        self.handles: dict[int, Any] = {}
        self.makers: dict[int, Any] = {}
        self._dataset_fn = dataset_fn
        self._groups = groups
        self._first = first
        self._examples: list[Any] = []  # One, or none before it is read.
        self._whole: WorkerInput | None = None
        self._begun: dict[int, int] = {}
        self._have_read: set[int] = set()  # The groups that have read all batches of a call.

    def example(self) -> Any:
        """See `BatchSource`: the first batch of the first group's dataset, which the chief can read too."""
        if not self._examples:
            self._examples.append(next(iter(self._first)))
        return self._examples[0]

    def for_call(self) -> "WorkerInput":
        """Returns the same data for one call of Keras' trainer, which sets its own `steps_per_epoch`.

        A validation, or a callback of `fit`, may read the data with which the groups train.
        """
        own = copy.copy(self)
        own._whole = self  # The iterators are freed with it.
        return own

    def __iter__(self) -> "WorkerInputIterator":
        return WorkerInputIterator(self)

    def begin(self, group: int, start: int, device: str) -> None:
        """Makes the iterator of a worker group, once for each start of the group."""
        if self._begun.get(group) == start:
            return
        with tf.device(device):
            with tf.device("/device:CPU:0"):
                handle = tf.raw_ops.AnonymousIteratorV3(**_types_and_shapes(self.element_spec))
            if group not in self.makers:
                self.makers[group] = _maker(self._dataset_fn, self._groups, group)
            self.makers[group](handle)
        self.handles[group] = handle
        self._begun[group] = start

    def read(self, group: int, count: int, call: Callable[[Any], Any]) -> Any:
        """Returns what the call of a group returns that reads batches.

        Args:
            group: the number of the group.
            count: how many batches it reads.
            call: takes the handle of the group's iterator.

        Raises:
            ValueError: if the dataset ends in the first call of the group, as one without batches.
            tf.errors.OutOfRangeError: if it ends later. Keras ends the epoch then, and the training, for all groups.
        """
        try:
            result = call(self.handles[group])
        except tf.errors.OutOfRangeError:
            if group in self._have_read:
                _log.warning("the dataset of worker group %d has ended, which ends the epoch of all; let it repeat", group)
                raise
            raise ValueError(
                f"the dataset of worker group {group} ended in the group's first call, which reads {count} batches. Every "
                "group needs data, and a dataset that repeats them: `shard` of the files leaves groups without any if there "
                "are fewer files than groups; shard the examples then"
            ) from None
        self._have_read.add(group)
        return result


def next_batch(element_spec: Any, handle: Any) -> Any:
    """Returns the next batch of an iterator, in a function that a group runs."""
    with tf.device("/device:CPU:0"):
        values = tf.raw_ops.IteratorGetNext(iterator=handle, **_types_and_shapes(element_spec))
    return tf.nest.pack_sequence_as(element_spec, values)


def _types_and_shapes(element_spec: Any) -> dict[str, Any]:
    specs = tf.nest.flatten(element_spec)
    return {"output_types": [spec.dtype for spec in specs], "output_shapes": [spec.shape for spec in specs]}


def _maker(dataset_fn: Callable[[Any], tf.data.Dataset], groups: int, group: int) -> Any:
    def make(handle: Any) -> Any:
        with tf.device("/device:CPU:0"):
            tf.raw_ops.MakeIterator(dataset=_dataset(dataset_fn, groups, group)._variant_tensor, iterator=handle)
        return tf.constant(0)

    return tf.function(make, autograph=False).get_concrete_function(tf.TensorSpec([], tf.resource))


class WorkerInputIterator(BatchIterator):
    """Counts the batches of an epoch for the chief.

    Raises:
        ValueError: without `steps_per_epoch`, and from `next`, which `predict` calls.
    """

    def __init__(self, owner: WorkerInput) -> None:
        super().__init__(owner)
        if owner.steps_per_epoch is None:
            raise ValueError(
                "worker groups read this data themselves, so the chief does not see its end; pass steps_per_epoch and "
                "validation_steps to fit, steps to evaluate, and let the dataset repeat"
            )

    def __next__(self) -> WorkerBatch:
        raise ValueError(
            "predict returns its outputs in the order of its data, and worker groups read theirs in no common order; pass "
            "arrays or a dataset to predict, which the chief then reads"
        )

    def like_next(self) -> Any:
        """See `BatchIterator`: the first batch of the first group's dataset."""
        return self.owner.example()

    def _next_batches(self, count: int) -> list[Any]:
        assert isinstance(self.owner, WorkerInput)
        return [WorkerBatch(self.owner)] * count


def of_dataset(dataset: Any) -> WorkerInput | None:
    """Returns the `WorkerInput` of a result of `distribute_datasets_from_function`; None for any other dataset."""
    return getattr(dataset, "_tfdist_on_workers", None)


def dataset_of(dataset_fn: Callable[[Any], tf.data.Dataset], groups: int) -> tf.data.Dataset:
    """Returns the first group's dataset, which Keras takes as any other, marked with a `WorkerInput` for all groups.

    Raises:
        TypeError: if `dataset_fn` does not return a dataset.
        ValueError: if the dataset has values other than dense tensors.
    """
    dataset = _dataset(dataset_fn, groups, 0)
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"the function for distribute_datasets_from_function returned a {type(dataset).__name__}, not a Dataset"
        )
    if not all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(dataset.element_spec)):
        raise ValueError("worker groups read dense tensors only; pass the dataset itself to fit, which the chief then reads")
    marked = copy.copy(dataset)  # Whoever drops it drops the `WorkerInput`. An iterator over the other keeps that for a while.
    marked._tfdist_on_workers = WorkerInput(dataset_fn, groups, dataset)
    marked.map = _refuse_map  # Keras' class_weight.
    return marked


def _dataset(dataset_fn: Callable[[Any], tf.data.Dataset], groups: int, group: int) -> tf.data.Dataset:
    return dataset_fn(tf.distribute.InputContext(groups, group, groups))


def _refuse_map(*_: Any, **__: Any) -> Any:
    raise ValueError(
        "class_weight does not apply to data that worker groups read; let the dataset yield sample weights as a third component"
    )
