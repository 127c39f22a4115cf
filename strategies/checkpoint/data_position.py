"""Where a `fit` stands in its data, and how another process gets there.

A training that continues in the middle of its epochs must see the data of those epochs. Their order depends on how many
iterators of the dataset were made before: a shuffled dataset gives each another order. So the iterators of the epochs that are
done are made again, without reading them, and the batches of the current epoch that are done are read and dropped. Data that
Keras iterates once for all epochs (`steps_per_epoch`) have to be read from their beginning. The validation data have an
iterator for each validation, which is made again after that of its epoch: both may be parts of one shuffled dataset.

Data may draw from `random` and `numpy.random`. Most draw when an epoch begins, so that the state of that moment brings the same
order back. Data that one iterator reads through all epochs, often in a thread that is some batches ahead, go on from what they
have drawn while they were read again.
"""

import contextlib
import dataclasses
import functools
import inspect
import logging
import operator
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.checkpoint import random_numbers
from tfdist.strategies.inputs.source import BatchIterator
from tfdist.strategies.inputs.worker_input import WorkerInput
from tfdist.strategies.private_api import TFEpochIterator, patches
from tfdist.strategies.private_api.eager_context import global_seed
from tfdist.strategies.private_api.pipelines import has_memory_cache, has_no_order, repeats_shuffled

_log = logging.getLogger("tfdist")
_positions: "list[DataPosition]" = []
"""Those of the calls of `fit` that run now, the innermost last."""


@dataclasses.dataclass
class Resumption:
    """How far the data were read.

    Attributes:
        epochs: how many epochs of this call of `fit` are done.
        batches: how many batches of the next epoch are done.
        batches_per_epoch: what Keras knows about the length of an epoch after the first; None for nothing.
        keeps_random_state: whether the next epoch has the random numbers of `DataPosition.begin_epoch`, whatever those that are
            done draw again.
    """

    epochs: int
    batches: int
    batches_per_epoch: int | None = None
    keeps_random_state: bool = False


class DataPosition:
    """The data of one call of `fit`.

    Args:
        model: the model that `fit` trains.
        arguments: all arguments of `fit`, by name; in tests, none.

    Attributes:
        iterator: Keras' iterator of epochs; None before Keras has made it.
        random_state: what `random_numbers.state` returned when the current epoch began.
        state_before: what it returned before the first epoch that is done: a `PyDataset` may shuffle with it, epoch by epoch.
        drawn: which random numbers the data draw, as far as the making of `iterator` shows: Keras looks at the first batches of
            a generator.
        initial_epoch: the argument of `fit`.
        is_passed_over: whether an earlier process has finished this call, so that no epoch is left.
    """

    def __init__(self, model: Any = None, arguments: Mapping[str, Any] | None = None) -> None:
        self._arguments = arguments or {}
        self.initial_epoch = int(self._arguments.get("initial_epoch", 0))
        self.is_passed_over = False
        self.iterator: Any = None
        self.random_state: Any = None
        self.state_before: Any = None
        self.drawn: list[bool] = []
        self._others_state: Any = None  # What `take_place` sets.
        self._model = model
        self._resumption: Resumption | None = None
        self._validations = 0  # At first those of an earlier process.

    def resume(self, resumption: Resumption) -> None:
        """Makes the next epoch continue there, and the next validation follow those of the epochs that are done."""
        self._resumption, self.state_before = resumption, random_numbers.state()
        self._validations = sum(map(self._has_validation, range(resumption.epochs)))

    @property
    def is_read_on(self) -> bool:
        """Whether one iterator of the data goes through all epochs."""
        kind = type(self.iterator.data_adapter).__name__
        return kind == "GeneratorDataAdapter" or (kind == "TFDatasetAdapter" and bool(self.iterator.steps_per_epoch))

    def begin_epoch(self, state: Any) -> None:
        """Sets the random numbers with which the epoch that continues began, as `random_numbers.state` returned them.

        Data that are read on have to be at their place first: a thread may read them now, and draw.
        """
        if self.is_read_on:
            self._others_state = state
        else:
            random_numbers.set_state(state)

    def take_place(self, before: Any) -> None:
        """Sets the random numbers of an epoch that continues, except those that its data draw, which are at their place now.

        Args:
            before: what `random_numbers.state` returned before they were read.
        """
        state, self._others_state = self._others_state, None
        if state is not None:
            drawn = map(operator.or_, self.drawn, random_numbers.drawn(before))
            random_numbers.set_state([None if of_data else each for of_data, each in zip(drawn, state, strict=False)])

    def pass_over(self, epochs: int) -> None:
        """Brings the data to where a call leaves them that an earlier process has finished: the next call may get the same.

        Args:
            epochs: how many epochs the call has made.
        """
        self.is_passed_over = True
        kind = type(self.iterator.data_adapter).__name__
        if kind == "GeneratorDataAdapter":  # It may take hours to read.
            _log.warning(
                "a call of fit that was finished before the restart had a generator, which is not read: a later call that gets "
                "the same generator begins with its first batch"
            )

        def repeat_epoch(is_first: bool) -> None:
            # An endless dataset may shuffle each repetition, and how many of these the call began decides what the next gets.
            if kind == "TFDatasetAdapter":
                _repeat_epoch(self.iterator, is_first)
            elif kind != "GeneratorDataAdapter":
                _make_iterators(self.iterator)

        self.repeat_epochs(epochs, repeat_epoch)

    def repeat_epochs(self, epochs: int, repeat_epoch: Callable[[bool], None]) -> None:
        """Does again what epochs and their validations do to datasets of tf.data.

        Args:
            epochs: how many epochs.
            repeat_epoch: does it for the data of the training, told whether the epoch is the first.
        """
        data = self._arguments.get("validation_data")
        data = None if data is None else keras.utils.unpack_x_y_sample_weight(data)[0]
        validation: Any = None
        for number in range(epochs):
            repeat_epoch(not number)
            if isinstance(data, tf.data.Dataset) and self._has_validation(number):
                is_first = validation is None
                validation = validation or TFEpochIterator(
                    SimpleNamespace(experimental_distribute_dataset=lambda dataset: dataset),
                    x=data,
                    steps_per_epoch=self._arguments["validation_steps"],
                    steps_per_execution=self._model.steps_per_execution,
                )
                if _has_to_be_read(validation, is_first):
                    _read(validation)
                else:
                    _make_iterators(validation)
                validation.reset()

    def _has_validation(self, number: int) -> bool:
        """Returns whether an epoch of this call, counted from 0, has a validation, if `fit` has data for it."""
        epoch, every = self.initial_epoch + number + 1, self._arguments.get("validation_freq", 1)
        return epoch % every == 0 if isinstance(every, int) else epoch in every

    def take_resumption(self, iterator: Any) -> Resumption | None:
        """Returns where the epoch continues that begins with an iterator of Keras; None for its beginning."""
        resumption = None
        if iterator is self.iterator:
            resumption, self._resumption = self._resumption, None
        return resumption

    def take_validations(self, iterator: Any) -> int:
        """Returns how many validations were made before the one that begins with an iterator of Keras."""
        if iterator is not getattr(self._model, "_eval_epoch_iterator", self):
            return 0
        validations, self._validations = self._validations, 0
        return validations


def install() -> None:
    """Replaces the methods. Calling it again does nothing."""
    patches.FIT.patch(_fit)
    patches.EPOCH_ITERATOR.patch(_init)
    patches.ENUMERATE_EPOCH.patch(_enumerate)


def current() -> DataPosition | None:
    """Returns the position of the innermost call of `fit`; None outside of one."""
    return _positions[-1] if _positions else None


# Replacements. The first parameter is the function that they replace.


def _fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    model._initial_epoch = None  # Keras keeps that of an earlier `fit` that has restored a backup.
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    bound.apply_defaults()
    position = DataPosition(model, bound.arguments)
    _positions.append(position)
    try:
        return original(model, *args, **kwargs)
    finally:
        _positions.remove(position)


def _init(original: Callable[..., Any], iterator: Any, *args: Any, **kwargs: Any) -> None:
    before = random_numbers.state() if _positions else None
    original(iterator, *args, **kwargs)
    if _positions and _positions[-1].iterator is None:  # The first that `fit` makes is that of the training.
        _positions[-1].iterator, _positions[-1].drawn = iterator, random_numbers.drawn(before)


def _enumerate(original: Callable[..., Any], iterator: Any) -> Iterator[Any]:
    if type(iterator.data_adapter).__name__ == "GeneratorDataAdapter":  # Others have a new iterator for each validation.
        for _ in range(sum(each.take_validations(iterator) for each in _positions)):
            _repeat_epoch(iterator, is_first=False)
            own = iterator._epoch_iterator
            iterator.reset()  # As Keras does before each validation.
            iterator._epoch_iterator = own
    found = ((each, resumption) for each in _positions if (resumption := each.take_resumption(iterator)) is not None)
    position, resumption = next(found, (None, None))
    if position is None or resumption is None:
        yield from original(iterator)
        return
    before, is_read_on = random_numbers.state(), position.is_read_on
    state = before if resumption.keeps_random_state and not is_read_on else None
    if state is not None:
        random_numbers.set_state(position.state_before)
    position.repeat_epochs(resumption.epochs, functools.partial(_repeat_epoch, iterator))
    if state is not None and type(iterator.data_adapter).__name__ == "PyDatasetAdapter":
        _warn_of_draws(position.state_before, state, resumption.batches > 0)
    if resumption.epochs and iterator._num_batches is None:
        iterator._num_batches = resumption.batches_per_epoch
    if state is not None:
        random_numbers.set_state(state)
    if resumption.batches:
        _warn_of_order(iterator)
    left = resumption.batches
    for begin, end, batches in original(iterator):
        if left > 0:
            _drop(batches, min(left, iterator.steps_per_execution))
            left -= iterator.steps_per_execution
            if left >= 0:
                continue
        if is_read_on:
            position.take_place(before)
        yield begin, end, batches


def _repeat_epoch(iterator: Any, is_first: bool) -> None:
    """Makes the iterators that an epoch makes, and reads what the next epoch does not see again."""
    if iterator.steps_per_epoch or _has_to_be_read(iterator, is_first):
        _read(iterator)
    else:
        _make_iterators(iterator)


def _has_to_be_read(iterator: Any, is_first: bool) -> bool:
    """Returns whether later epochs depend on what is read in one, and not on its iterators alone.

    The first epoch of a call fills a cache, and gives all epochs its order. An epoch may also begin several repetitions.
    """
    dataset = getattr(iterator.data_adapter, "_dataset", None)
    if not isinstance(dataset, tf.data.Dataset):
        return False
    return repeats_shuffled(dataset) or (is_first and has_memory_cache(dataset))


def _read(iterator: Any) -> None:
    """Reads the batches of an epoch, and drops them."""
    for _, _, batches in patches.ENUMERATE_EPOCH.original(iterator):
        if not _drop(batches, iterator.steps_per_execution) and not iterator.steps_per_epoch:
            return


def _make_iterators(iterator: Any) -> None:
    """Makes the iterators that an epoch makes, and reads nothing."""
    adapter = iterator.data_adapter
    kind = type(adapter).__name__
    if kind == "ArrayDataAdapter":
        return  # Each of its iterators has the same order, or without a seed any order.
    if kind == "TFDatasetAdapter" and isinstance(dataset := adapter.get_tf_dataset(), tf.data.Dataset):
        # A shuffled dataset counts its own iterators. Those of the whole pipeline take several times as long. The first epoch
        # had the one that the model was built with, so the next epoch must not get it.
        source = iterator._distributed_dataset
        iterator._get_iterator = lambda: source if getattr(source, "has_unused", False) else dataset
    try:
        with _without_workers(adapter):
            if iterator.num_batches is not None:
                for _ in patches.ENUMERATE_EPOCH.original(iterator):
                    pass
            else:  # Keras finds out about the end by reading.
                adapter.on_epoch_begin()
                iter(iterator._get_iterator())
                adapter.on_epoch_end()
    finally:
        vars(iterator).pop("_get_iterator", None)


@contextlib.contextmanager
def _without_workers(adapter: Any) -> Iterator[None]:
    """Lets no worker of a `PyDataset` read in an epoch of which nobody takes a batch: the next one would get what it has."""
    if (workers := getattr(adapter, "enqueuer", None)) is None:
        yield
        return
    adapter.enqueuer = None
    try:
        yield
    finally:
        adapter.enqueuer = workers


def _drop(batches: Any, count: int) -> bool:
    """Reads and drops batches. Returns whether there was any."""
    if isinstance(batches, BatchIterator):
        batches.begin_epoch_if_over()  # Else it has none left after an epoch of `steps_per_epoch`.
        return bool(batches.take(count))
    return sum(next(batches, None) is not None for _ in range(count)) > 0


def _warn_of_order(iterator: Any) -> None:
    """Warns if the first batches of the epoch cannot be those that the earlier process has trained on."""
    if isinstance(iterator._distributed_dataset, WorkerInput):
        _log.warning(
            "the worker groups read their data themselves, and begin it anew after the restart: examples of this epoch may "
            "count twice, and others not at all"
        )
        return
    adapter = iterator.data_adapter
    dataset = getattr(adapter, "_dataset", None)
    if isinstance(dataset, tf.data.Dataset) and has_no_order(dataset):
        _log.warning(
            "the training continues in the middle of an epoch, and its data have no fixed order (deterministic=False): "
            "examples of this epoch may count twice, and others not at all"
        )
    elif global_seed() is None and getattr(adapter, "_shuffle", type(adapter).__name__ == "TFDatasetAdapter"):
        _log.warning(
            "the training continues in the middle of an epoch, and the program sets no seed: unless the data have a fixed "
            "order, examples of this epoch may count twice, and others not at all; call keras.utils.set_random_seed"
        )


def _warn_of_draws(before: Any, expected: Any, in_epoch: bool) -> None:
    """Warns if what a `PyDataset` has drawn again in the epochs that are done is not all that was drawn in them.

    Args:
        before: what `random_numbers.state` returned before it drew again.
        expected: what it returned after these epochs in the earlier process.
        in_epoch: whether the training continues in the middle of an epoch.
    """
    # Each generator of random numbers for itself: Keras draws seeds from that of Python.
    if any(now not in states for now, *states in zip(random_numbers.state(), before, expected, strict=False)):
        _log.warning(
            "the PyDataset draws random numbers between epochs, and its __getitem__, a callback or else drew some, too, before "
            "the restart: it continues in another order than without a restart%s",
            ", so that examples of this epoch may count twice, and others not at all" if in_epoch else "",
        )
