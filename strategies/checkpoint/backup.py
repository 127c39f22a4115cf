"""`keras.callbacks.BackupAndRestore`: a backup is one file, and every task restores the chief's.

Keras writes weights and epoch to two files. After a kill between the two it resumes with the weights of one epoch at another.
So the file of weights holds the epoch too, and that epoch counts. The second file is written for Keras without tfdist. The
backup before the latest stays in a hidden file, for the case that the latest is damaged (generations.py).
"""

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from tfdist.strategies.checkpoint import data_position, generations, memory_file, model_states, save_order, strategy_state
from tfdist.strategies.checkpoint.atomic_path import atomic_path, is_chief, is_local
from tfdist.strategies.checkpoint.own_folder import OwnFolder
from tfdist.strategies.keras_hooks.strategy_parts import calls_of
from tfdist.strategies.private_api import file_patches

PIECE_BYTES = 2**24
"""How much travels with one message. A task needs about five times this much memory."""

OWN_VARIABLES = "tfdist_own_variables"
"""The HDF5 group of a backup with `model_states.own_variables`."""

_PROGRESS = "tfdist_training"
"""The HDF5 attribute of a backup's weights with its epoch and batch, as JSON."""


def install() -> None:
    """Replaces the methods. Calling it again does nothing."""
    file_patches.BACKUP_SAVE.patch(_save)
    file_patches.BACKUP_LOAD.patch(_load)
    file_patches.BACKUP_TRAIN_BEGIN.patch(_begin)
    file_patches.BACKUP_TRAIN_END.patch(_end)


class Broadcast:
    """Sends data of the chief to every task of a MultiWorkerMirrored strategy. Every task has to make the same calls.

    The data travel as 64-bit words: a new variable has the chief's initial value everywhere, and nothing is traced for it.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._calls = calls_of(strategy)

    def send(self, piece: bytes, size: int) -> bytes:
        """Returns the chief's `piece` of `size` bytes on every task. Others may pass anything."""
        padded = (piece if is_chief() else b"").ljust(-(-size // 8) * 8, b"\0")
        # A task that is lost meanwhile is found as in a step, and one that makes another call is named.
        with contextlib.nullcontext() if self._calls is None else self._calls.executing(), self._strategy.scope():
            return bytes(tf.Variable(np.frombuffer(padded, np.int64), trainable=False).numpy().tobytes()[:size])

    def send_numbers(self, numbers: list[int]) -> list[int]:
        """Returns the chief's 64-bit numbers on every task; each passes as many."""
        received = self.send(np.array(numbers, np.int64).tobytes(), 8 * len(numbers))
        return [int(number) for number in np.frombuffer(received, np.int64)]

    def send_files(self, sources: list[str], targets: list[str]) -> None:
        """Writes the chief's files `sources` to `targets` on every other task. Files that do not exist are left out."""
        sizes = self.send_numbers([os.path.getsize(path) if is_chief() and os.path.exists(path) else -1 for path in sources])
        for source, target, size in zip(sources, targets, sizes, strict=True):
            if size < 0:
                continue
            with open(source if is_chief() else target, "rb" if is_chief() else "wb") as file:
                for begin in range(0, size, PIECE_BYTES):
                    length = min(PIECE_BYTES, size - begin)
                    piece = self.send(file.read(length) if is_chief() else b"", length)
                    if not is_chief():
                        file.write(piece)


def _is_multi_worker(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


# Replacements. The first parameter is the function that they replace.


def _save(original: Callable[..., Any], callback: Any) -> None:
    with save_order.after_chief(callback._weights_path):
        if not is_local(callback.backup_dir):
            if _is_multi_worker(callback.model.distribute_strategy):
                raise ValueError(
                    f"BackupAndRestore under multi_worker_mirrored needs a backup_dir on a file system of the chief, not "
                    f"{callback.backup_dir}"
                )
            original(callback)
            return
        progress = json.dumps({"epoch": callback._current_epoch, "batch": callback._last_batch_seen})
        memory, own = memory_file.save_weights(callback.model), model_states.own_variables(callback.model)
        if not is_chief():
            return
        with h5py.File(memory, "a") as file:
            file.attrs[_PROGRESS] = progress
            strategy_state.put_all(file, OWN_VARIABLES, own)
        with atomic_path(callback._weights_path, make_folder=True) as partial:
            memory_file.copy_to(memory, partial)
            generations.seal(partial)
            generations.keep(callback._weights_path, _earlier(callback))
            if callback.double_checkpoint:
                generations.keep(callback._training_metadata_path, callback._prev_training_metadata_path)
        with atomic_path(callback._training_metadata_path) as partial, open(partial, "w", encoding="utf-8") as file:
            file.write(progress)


def _load(original: Callable[..., Any], callback: Any) -> None:
    try:
        with callback.model.distribute_strategy.scope():  # It may have to make the optimizer's variables.
            original(callback)
    except OSError as error:
        raise _unreadable(callback, f"cannot be read ({error})") from error
    if os.path.exists(callback._weights_path):
        with h5py.File(callback._weights_path) as file:
            if _PROGRESS in file.attrs:
                callback.model._initial_epoch = json.loads(file.attrs[_PROGRESS])["epoch"]
            if OWN_VARIABLES in file:
                model_states.set_own_variables(callback.model, strategy_state.values_of(file[OWN_VARIABLES]))
    # Keras counts from 0 in a new process. A backup in the first epoch after a restart would begin the training anew.
    callback._current_epoch = callback.model._initial_epoch or 0
    position = data_position.current()
    if position is not None and (epochs := callback._current_epoch - position.initial_epoch) > 0:
        position.resume(data_position.Resumption(epochs, 0))


def _choose(callback: Any) -> None:
    """Puts the backup before the latest into its place if the latest is damaged or gone.

    Raises:
        OSError: if there is no whole backup.
    """
    path = callback._weights_path
    found = [each for each in dict.fromkeys([_earlier(callback), callback._prev_weights_path]) if os.path.exists(each)]
    if not is_local(callback.backup_dir) or not (found or os.path.exists(path)) or (reason := generations.damage(path)) is None:
        return
    for earlier in found:
        if generations.damage(earlier) is None:
            generations.use_earlier(path, earlier, reason)
            return
    raise _unreadable(callback, reason)


def _unreadable(callback: Any, reason: str) -> OSError:
    return OSError(
        f"the backup {callback._weights_path} {reason}, and there is no whole one before it; put a copy in its place, or "
        f"remove the folder {callback.backup_dir} to train from the beginning"
    )


def _earlier(callback: Any) -> str:
    """Returns the path of the backup before the latest. It is Keras' own if the user wants two."""
    if callback.double_checkpoint:
        return str(callback._prev_weights_path)
    folder, name = os.path.split(callback._weights_path)
    return os.path.join(folder, f".{name}.earlier")


def _begin(original: Callable[..., Any], callback: Any, logs: Any = None) -> None:
    strategy = callback.model.distribute_strategy
    if is_chief():
        _choose(callback)
    if not _is_multi_worker(strategy):
        original(callback, logs)
        return
    # Every other task restores from a copy of the chief's folder: the path may be another folder on every machine.
    names = ("_weights_path", "_training_metadata_path", "_prev_weights_path", "_prev_training_metadata_path")
    paths = {name: getattr(callback, name) for name in names}
    with OwnFolder() as folder:
        copies = {name: os.path.join(folder, os.path.basename(path)) for name, path in paths.items()}
        Broadcast(strategy).send_files(list(paths.values()), list(copies.values()))
        try:
            for name, path in paths.items() if is_chief() else copies.items():
                setattr(callback, name, path)
            original(callback, logs)
        finally:
            for name, path in paths.items():
                setattr(callback, name, path)


def _end(original: Callable[..., Any], callback: Any, logs: Any = None) -> None:
    if is_chief():
        original(callback, logs)
