"""Measures a `fit` for `tfdist plan`: the reporter writes the moments of its steps, the batch and the variables to a file.

The planner's probe runs the user's unchanged program, and ends it when it has seen enough (launch/plan/). So `fit` goes on
until then, without validation, and without the callbacks that report, write files or end the training.
"""

import functools
import logging
import time
import types
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from tfdist.json_values import replace_file
from tfdist.strategies.inputs import worker_input
from tfdist.strategies.keras_hooks.callbacks import listed

SUFFIX = ".measured"
"""The file is beside the report (run_summary.py), with this at the end of its name."""

WRITE_SECONDS = 0.1
DEFAULT_BATCH = 32
"""Keras' batch size for arrays."""

ENDLESS_EPOCHS = 10**9

_log = logging.getLogger("tfdist")

_LEFT_OUT = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.EarlyStopping,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
    keras.callbacks.TerminateOnNaN,
    *([keras.callbacks.OrbaxCheckpoint] if hasattr(keras.callbacks, "OrbaxCheckpoint") else []),  # Since Keras 3.13.
)


def change(arguments: MutableMapping[str, Any]) -> None:
    """Makes `fit` train until it is ended: without validation, and without callbacks that report, write files or end it.

    The other callbacks get more epochs than they expect, and no results of a validation: their errors are warnings. A dataset
    of which an epoch takes a part begins again at its end.

    Args:
        arguments: the arguments of `fit`, by name.
    """
    arguments["epochs"] = ENDLESS_EPOCHS
    x = arguments.get("x")
    if arguments.get("steps_per_epoch") and isinstance(x, tf.data.Dataset) and worker_input.of_dataset(x) is None:
        arguments["x"] = x.repeat()
    for name in ("validation_data", "validation_split"):
        arguments.pop(name, None)
    callbacks = arguments.get("callbacks")
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks[:] = _kept(callbacks.callbacks)
    elif callbacks:
        arguments["callbacks"] = _kept(listed(callbacks))


def _kept(callbacks: Sequence[keras.callbacks.Callback]) -> list[keras.callbacks.Callback]:
    """Returns those that are not left out, whose functions for epochs do not end the training by an error."""
    kept = [each for each in callbacks if not isinstance(each, _LEFT_OUT)]
    for callback in kept:
        for name in ("on_epoch_begin", "on_epoch_end"):
            setattr(callback, name, _without_errors(getattr(callback, name), type(callback).__name__))
    return kept


def _without_errors(function: Callable[..., None], name: str) -> Callable[..., None]:
    warned: list[Exception] = []

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:
            if not warned:
                warned.append(error)
                _log.warning("the callback %s fails in the measured fit, which goes on: %r", name, error)

    return call


def end() -> NoReturn:
    """Ends the program where `fit` has run out of data, so that nothing that follows it runs.

    Raises:
        SystemExit: always, with 0.
    """
    _log.warning("the data of fit have ended before the measurement; what follows fit does not run")
    raise SystemExit(0)


class Endless(keras.callbacks.Callback):
    """Takes back that a callback before it ends the training."""

    tfdist_reads_batches = False  # See keras_hooks/trainer.py.

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        self.model.stop_training = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        self.model.stop_training = False


class MeasuredFit(keras.callbacks.Callback):
    """Writes what the probe wants to know.

    The file holds JSON: `batch` (examples) and `batch_bytes` (that the chief sends) of a step, and `epoch` (its steps), null if
    not known, `variables` (`name`, `shape`, `size` in bytes, `is_table`), and `steps`: a moment (`time.monotonic`), the steps
    that were done then, and the seconds for which functions of worker groups had been traced.
    """

    tfdist_reads_batches = False  # See keras_hooks/trainer.py.

    def __init__(self, report: str, arguments: MutableMapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        """Prepares the callback.

        Args:
            report: path of the report.
            arguments: the arguments of `fit`, by name; see `batch_of`.
            clock: returns seconds.
        """
        super().__init__()
        self._path = f"{report}{SUFFIX}"
        self._batch = batch_of(arguments)
        self._clock = clock
        self._steps: list[tuple[float, int, float]] = []
        self._steps_done = 0
        self._last_batch = -1
        self._written_at = 0.0
        self._variables: list[dict[str, Any]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        self._last_batch = -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        self._steps_done += batch - self._last_batch
        self._last_batch = batch
        now = self._clock()
        if now - self._written_at >= WRITE_SECONDS:
            self._written_at = now
            strategy = getattr(self.model, "distribute_strategy", None)
            self._steps.append((now, self._steps_done, getattr(strategy, "seconds_traced", 0.0)))
            self._write()

    def _write(self) -> None:
        examples, size = self._batch
        self._variables = self._variables or variables_of(self.model)
        values = {"batch": examples, "batch_bytes": size, "variables": self._variables, "steps": self._steps}
        values["epoch"] = (self.params or {}).get("steps")
        replace_file(self._path, values)


def variables_of(model: Any) -> list[dict[str, Any]]:
    """Returns the trainable variables: `name`, `shape`, `size` in bytes, and `is_table` for those of Embedding layers."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    tables = {id(variable) for layer in layers for variable in layer.trainable_variables}
    found = []
    for variable in model.trainable_variables:
        shape = [int(length) for length in variable.shape]
        size = int(np.prod(shape, dtype=np.int64)) * tf.as_dtype(variable.dtype).size
        found.append({"name": variable.path, "shape": shape, "size": size, "is_table": id(variable) in tables})
    return found


def batch_of(arguments: MutableMapping[str, Any]) -> tuple[int | None, int | None]:
    """Returns the examples of a batch, and the bytes that the chief sends for it; None for what cannot be known beforehand.

    Args:
        arguments: the arguments of `fit`, by name. A generator is replaced by one that also yields the batch that this takes.
    """
    x = arguments.get("x")
    if isinstance(x, types.GeneratorType):
        for first in x:
            arguments["x"] = _beginning_with(first, x)
            return _size_of(first)
        return None, None
    if isinstance(x, tf.data.Dataset):
        examples, size = _size_of(next(iter(x.take(1)), None))
        return examples, 0 if worker_input.of_dataset(x) is not None else size
    if isinstance(x, keras.utils.PyDataset):
        return _size_of(x[0])
    parts = [arguments.get(name) for name in ("x", "y", "sample_weight")]
    if not all(hasattr(each, "shape") for each in tf.nest.flatten([part for part in parts if part is not None])):
        return None, None
    examples, size = _size_of([part for part in parts if part is not None])
    if not examples:
        return None, None
    batch = min(arguments.get("batch_size") or DEFAULT_BATCH, examples)
    return batch, None if size is None else size * batch // examples


def _beginning_with(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _size_of(batch: Any) -> tuple[int | None, int | None]:
    """Returns the examples and bytes of nested tensors or arrays; ragged and sparse ones count with their indices."""
    values = [value for value in tf.nest.flatten(batch) if value is not None]
    if not values:
        return None, None
    shape = values[0].shape if hasattr(values[0], "shape") else np.shape(values[0])
    if not len(shape):
        return None, None
    return int(shape[0]), sum(_bytes_of(np.asarray(part)) for part in tf.nest.flatten(values, expand_composites=True))


def _bytes_of(array: Any) -> int:
    """Returns the bytes of an array. Of strings numpy counts references or padding, and TensorFlow sends the characters."""
    if array.dtype.kind not in "OSU":
        return int(array.nbytes)
    return sum(len(each if isinstance(each, bytes) else str(each).encode()) for each in array.flat)
