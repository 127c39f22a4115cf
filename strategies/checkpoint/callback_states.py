"""What Keras' callbacks remember from one epoch to the next, so that they go on after a restart as if nothing had happened.

Callbacks of the user's own begin anew.
"""

import contextlib
import csv
import os
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.checkpoint.atomic_path import atomic_path

_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "best", "best_epoch", "stopped_epoch"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch"),
    keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch"),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
    keras.callbacks.History: ("epoch", "history"),
    keras.callbacks.CSVLogger: ("keys",),
}
if hasattr(keras.callbacks, "OrbaxCheckpoint"):  # Older versions of Keras have none.
    _ATTRIBUTES[keras.callbacks.OrbaxCheckpoint] = (*_ATTRIBUTES[keras.callbacks.ModelCheckpoint][:3], "_total_batches_seen")
_SIZE, _FILE = "file_size", "file"
"""What a CSVLogger has in place of attributes: how many bytes its file had, and its name."""

_ARRAYS = {keras.callbacks.EarlyStopping: "best_weights"}


def states(callbacks: Iterable[Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Returns what the callbacks remember.

    Returns:
        By the name of a callback, its attributes for JSON, and lists of numpy arrays.
    """
    values, arrays = {}, {}
    for name, kind, callback in _known(callbacks):
        values[name] = {attribute: _plain(getattr(callback, attribute, None)) for attribute in _ATTRIBUTES[kind]}
        if kind is keras.callbacks.CSVLogger and os.path.exists(callback.filename):
            values[name] |= {_SIZE: os.path.getsize(callback.filename), _FILE: callback.filename}
        if kept := getattr(callback, _ARRAYS.get(kind, ""), None):
            arrays[name] = [np.asarray(array) for array in kept]
    return values, arrays


def restore(callbacks: Iterable[Any], values: dict[str, Any], arrays: dict[str, list[Any]]) -> None:
    """Sets what `states` returned. Callbacks that it does not have keep what they are."""
    for name, kind, callback in _known(callbacks):
        for attribute in values.get(name, {}).keys() & {*_ATTRIBUTES[kind]}:
            setattr(callback, attribute, values[name][attribute])
        if name in arrays:
            setattr(callback, _ARRAYS[kind], arrays[name])


def continue_csv(callbacks: Iterable[Any], epoch: int, values: dict[str, Any]) -> None:
    """Removes the rows of a CSVLogger that the training is about to write again.

    Args:
        callbacks: the callbacks of the `fit` that continues.
        epoch: the number of the epoch at which it does.
        values: what `states` returned when the backup was saved.
    """
    for name, kind, callback in _known(callbacks):
        if kind is not keras.callbacks.CSVLogger or not os.path.exists(callback.filename):
            continue
        size = values.get(name, {}).get(_SIZE)
        if size is not None:
            if os.path.getsize(callback.filename) > size:
                os.truncate(callback.filename, size)
        elif not callback.append:  # Else rows of other trainings may be there.
            _keep_rows(callback, epoch)


def begin_csv(callbacks: Iterable[Any], values: dict[str, Any]) -> None:
    """Removes the rows that a `fit` has added to the file of a CSVLogger before it saved a backup, and makes anew.

    Args:
        callbacks: the callbacks of this `fit`.
        values: what `states` returned at the end of the one before.
    """
    sizes = {each[_FILE]: each[_SIZE] for each in values.values() if _FILE in each}
    for _, kind, callback in _known(callbacks):
        if kind is not keras.callbacks.CSVLogger or not callback.append or callback.filename not in sizes:
            continue
        with contextlib.suppress(OSError), open(callback.filename, "r+b") as file:
            file.seek(sizes[callback.filename])
            added = file.read().splitlines()
            if added and all(line.split(callback.sep.encode())[0].isdigit() for line in added):  # Nothing of the program's.
                file.truncate(sizes[callback.filename])


def _keep_rows(callback: keras.callbacks.CSVLogger, epoch: int) -> None:
    """Keeps the rows of the epochs before `epoch`."""
    with open(callback.filename, newline="") as file:
        rows = list(csv.reader(file, delimiter=callback.sep))
    kept = [row for row in rows if row and (not row[0].isdecimal() or int(row[0]) < epoch)]
    if len(kept) < len(rows):
        with atomic_path(callback.filename) as partial, open(partial, "w", newline="") as file:
            csv.writer(file, delimiter=callback.sep).writerows(kept)


def _known(callbacks: Iterable[Any]) -> Iterable[tuple[str, type, Any]]:
    """Yields name, class of Keras and callback: the name counts the callbacks of a class."""
    counts: dict[str, int] = {}
    for callback in callbacks:
        kind = next((kind for kind in _ATTRIBUTES if isinstance(callback, kind)), None)
        if kind is not None:
            name = type(callback).__name__
            counts[name] = counts.get(name, 0) + 1
            yield f"{name}-{counts[name]}", kind, callback


def _plain(value: Any) -> Any:
    """Returns a value for JSON. Callbacks of the user may put anything into the logs, such as a date: of that the text."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    value = value.numpy() if isinstance(value, tf.Tensor) else value  # NumPy takes no tensor of bfloat16.
    plain = np.asarray(value).tolist()
    return _plain(plain) if isinstance(plain, list | bool | int | float | str) else str(plain)
