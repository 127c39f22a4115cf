"""Data that each worker group reads itself: nothing of it goes through the chief, whose network would be the limit.

`strategy.distribute_datasets_from_function` is TensorFlow's own way to say so. What it returns goes to `fit` with
`steps_per_epoch`.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.named_resource import outermost_graph

_numbers = itertools.count()


class WorkerBatch:
    """A batch that the group reads which trains on it."""

    def __init__(self, data: "WorkerInput") -> None:
        self.data = data


class WorkerInput:
    """What Keras iterates in place of a dataset whose batches are read by the groups.

    Attributes:
        steps_per_epoch: how many batches Keras takes for one epoch.
        batches_per_epoch: as `FedDataset`'s.
        element_spec: as that of the dataset.
    """

    def __init__(self, dataset_fn: Callable[[Any], tf.data.Dataset], groups: int, first: tf.data.Dataset) -> None:
        self.steps_per_epoch: int | None = None
        self.batches_per_epoch: int | None = None
        self._dataset_fn = dataset_fn
        self._groups = groups
        self._first = first
        self.element_spec = first.element_spec
        self._name = f"tfdist/{os.getpid()}/data/{next(_numbers)}"
        self._example: Any = None
        self._begun: dict[int, int] = {}
        self._makers: dict[int, Any] = {}

    def example(self) -> Any:
        """Tensors of the shapes of a batch."""
        if self._example is None:
            self._example = next(iter(self._first))
        return self._example

    def __iter__(self) -> "WorkerInputIterator":
        return WorkerInputIterator(self)

    def begin(self, group: int, start: int, device: str) -> None:
        """Begins the group's iteration where it has not been since it was started for the `start`th time."""
        if self._begun.get(group) == start:
            return
        if group not in self._makers:

            def make() -> Any:
                variant = _dataset(self._dataset_fn, self._groups, group)._variant_tensor
                tf.raw_ops.MakeIterator(dataset=variant, iterator=self._handle())
                return tf.constant(0)

            with tf.device(device):
                self._makers[group] = tf.function(make, autograph=False).get_concrete_function()
        with tf.device(device):
            self._makers[group]()
        self._begun[group] = start

    def _handle(self) -> Any:
        graph = outermost_graph()
        specs = tf.nest.flatten(self.element_spec)
        with graph.as_default(), tf.control_dependencies(None), tf.device("/device:CPU:0"):
            return tf.raw_ops.IteratorV2(
                shared_name=self._name,
                container="",
                output_types=[spec.dtype for spec in specs],
                output_shapes=[spec.shape for spec in specs],
            )

    def reader(self) -> Callable[[], Any]:
        """In a function of a group: what gives its next batch, each time that it is called."""
        specs = tf.nest.flatten(self.element_spec)
        handle = self._handle()

        def read() -> Any:
            with tf.device("/device:CPU:0"):
                values = tf.raw_ops.IteratorGetNext(
                    iterator=handle,
                    output_types=[spec.dtype for spec in specs],
                    output_shapes=[spec.shape for spec in specs],
                )
            return tf.nest.pack_sequence_as(self.element_spec, values)

        return read


class WorkerInputIterator(Iterator[WorkerBatch]):
    """Counts the batches of an epoch."""

    def __init__(self, owner: WorkerInput) -> None:
        self.owner = owner
        self._taken = 0
        if owner.steps_per_epoch is None:
            raise ValueError(
                "data that the workers read has no end that the chief could see; give fit steps_per_epoch and "
                "validation_steps, and evaluate steps, and let the dataset repeat"
            )

    def __next__(self) -> WorkerBatch:
        raise ValueError(
            "predict gives its outputs in the order of its data, and the workers read theirs side by side; give predict "
            "arrays or a dataset, which the chief then reads"
        )

    def take(self, count: int) -> list[WorkerBatch]:
        """The next `count` batches; fewer, or none, at the end of `steps_per_epoch`."""
        assert self.owner.steps_per_epoch is not None
        count = min(count, self.owner.steps_per_epoch - self._taken)
        self._taken += count
        return [WorkerBatch(self.owner)] * count

    def begin_epoch_if_over(self) -> None:
        """Lets `take` go on when the batches of `steps_per_epoch` have all been taken."""
        if self._taken == self.owner.steps_per_epoch:
            self._taken = 0


def of_dataset(dataset: Any) -> WorkerInput | None:
    """The `WorkerData` of what `distribute_datasets_from_function` gave; None of any other dataset."""
    return getattr(dataset, "_tfdist_on_workers", None)


def dataset_of(dataset_fn: Callable[[Any], tf.data.Dataset], groups: int) -> tf.data.Dataset:
    """What `distribute_datasets_from_function` gives: the first group's dataset, which Keras takes for any other."""
    dataset = _dataset(dataset_fn, groups, 0)
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"the function for distribute_datasets_from_function gave a {type(dataset).__name__}, not a Dataset")
    if not all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(dataset.element_spec)):
        raise ValueError("the workers read dense tensors only; give fit the dataset itself, which the chief then reads")
    dataset._tfdist_on_workers = WorkerInput(dataset_fn, groups, dataset)
    dataset.map = _refuse_map  # Keras' class_weight.
    return dataset


def _dataset(dataset_fn: Callable[[Any], tf.data.Dataset], groups: int, group: int) -> tf.data.Dataset:
    return dataset_fn(tf.distribute.InputContext(groups, group, groups))


def _refuse_map(*_: Any, **__: Any) -> Any:
    raise ValueError(
        "class_weight does not reach data that the workers read; let the dataset give sample weights as a third part"
    )
