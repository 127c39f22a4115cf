"""`keras.callbacks.BackupAndRestore`: a backup is one file, and every task restores the chief's.

Keras writes weights and epoch to two files. After a kill between the two it resumes with the weights of one epoch at another.
So the file of weights holds the epoch too, and that epoch counts. The second file is written for Keras without tfdist.
"""

import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from tfdist.strategies.checkpoint.atomic_path import atomic_path, is_chief, is_local
from tfdist.strategies.private_api import patches

_PROGRESS = "tfdist_training"
"""The HDF5 attribute of a backup's weights with its epoch and batch, as JSON."""


def install() -> None:
    """Replaces the methods. Calling it again does nothing."""
    patches.BACKUP_SAVE.patch(_save)
    patches.BACKUP_LOAD.patch(_load)
    patches.BACKUP_TRAIN_BEGIN.patch(_begin)
    patches.BACKUP_TRAIN_END.patch(_end)
    patches.CHECKPOINT_TRAIN_END.patch(_end_of_checkpoints)


def broadcast(strategy: tf.distribute.Strategy, content: bytes) -> bytes:
    """Returns the chief's `content` on every task of a MultiWorkerMirrored strategy. Every task has to call it.

    The content travels by the strategy's own collectives as 32-bit words: the chief's first replica adds the content, all
    others add zeros.
    """

    def sum_of(words: tf.Tensor) -> tf.Tensor:
        def add() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            own = tf.where(tf.equal(context.replica_id_in_sync_group, 0), words, tf.zeros_like(words))
            return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

        return strategy.experimental_local_results(strategy.run(add))[0]

    total = tf.function(sum_of)
    size = int(total(tf.constant([len(content) if is_chief() else 0]))[0])
    padded = (content if is_chief() else b"").ljust(-(-size // 4) * 4, b"\0")
    words = total(tf.constant(np.frombuffer(padded, np.int32))) if size else tf.zeros([0], tf.int32)
    return bytes(words.numpy().tobytes()[:size])


def _is_multi_worker(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


# Replacements. The first parameter is the function that they replace.


def _save(original: Callable[..., Any], callback: Any) -> None:
    if not is_local(callback.backup_dir):
        if _is_multi_worker(callback.model.distribute_strategy):
            raise ValueError(
                f"BackupAndRestore under multi_worker_mirrored needs a backup_dir on a file system of the chief, not "
                f"{callback.backup_dir}"
            )
        original(callback)
        return
    progress = json.dumps({"epoch": callback._current_epoch, "batch": callback._last_batch_seen})
    if callback.double_checkpoint and is_chief() and os.path.exists(callback._weights_path):
        shutil.copy(callback._weights_path, callback._prev_weights_path)
        if os.path.exists(callback._training_metadata_path):
            shutil.copy(callback._training_metadata_path, callback._prev_training_metadata_path)
    with atomic_path(callback._weights_path, make_folder=True) as partial:
        callback.model.save_weights(partial)
        with h5py.File(partial, "a") as file:
            file.attrs[_PROGRESS] = progress
    with atomic_path(callback._training_metadata_path) as partial, open(partial, "w", encoding="utf-8") as file:
        file.write(progress)


def _load(original: Callable[..., Any], callback: Any) -> None:
    with callback.model.distribute_strategy.scope():  # It may have to make the optimizer's variables.
        original(callback)
    if os.path.exists(callback._weights_path):
        with h5py.File(callback._weights_path) as file:
            if _PROGRESS in file.attrs:
                callback.model._initial_epoch = json.loads(file.attrs[_PROGRESS])["epoch"]


def _begin(original: Callable[..., Any], callback: Any, logs: Any = None) -> None:
    strategy = callback.model.distribute_strategy
    if not _is_multi_worker(strategy):
        original(callback, logs)
        return
    # Every task restores from a copy of the chief's folder: the path may be another folder on every machine.
    names = ("_weights_path", "_training_metadata_path", "_prev_weights_path", "_prev_training_metadata_path")
    paths = {name: getattr(callback, name) for name in names}
    packed = broadcast(strategy, _pack(paths) if is_chief() else b"")
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        zipfile.ZipFile(io.BytesIO(packed)).extractall(folder)
        try:
            for name, path in paths.items():
                setattr(callback, name, os.path.join(folder, os.path.basename(path)))
            original(callback, logs)
        finally:
            for name, path in paths.items():
                setattr(callback, name, path)


def _end(original: Callable[..., Any], callback: Any, logs: Any = None) -> None:
    if is_chief():
        original(callback, logs)


def _end_of_checkpoints(original: Callable[..., Any], callback: Any, logs: Any = None) -> None:
    original(callback, logs)
    strategy = callback.model.distribute_strategy
    if _is_multi_worker(strategy):
        broadcast(strategy, b"")  # Waits for the chief's file: a program that loads it next finds it on every task.


def _pack(paths: dict[str, str]) -> bytes:
    """Returns a zip archive of those files that exist, under the last parts of their paths."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in paths.values():
            if os.path.exists(path):
                archive.write(path, os.path.basename(path))
    return packed.getvalue()
