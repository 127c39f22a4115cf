"""Files of a training: written by the chief alone, and whole or not at all.

Keras writes straight to the final name, on every task that runs the program. A process killed in the middle leaves half a file
there, and two tasks that share a folder spoil each other's. `install()` makes every save of this process, by Keras or
TensorFlow, go to a temporary name beside the final one, which then takes its place in one step. On a task that is not the
chief a save only takes part in reading the variables. The files themselves are Keras' and TensorFlow's own, for any strategy
and without tfdist.
"""

import contextlib
import copy
import functools
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.checkpoint import strategy_state
from tfdist.strategies.coordinator import chief_device
from tfdist.strategies.private_api import (
    TrackableSaver,
    checkpoint_management,
    file_utils,
    legacy_h5_format,
    saved_model_save,
    saving_lib,
)

_PROGRESS = "tfdist_training"  # The attribute of a backup's weights that holds its epoch and batch, as JSON.

_is_chief = True
_takes_part = False  # Whether a task that is not the chief is inside `whole`: a SavedModel holds a checkpoint.
_io_device: str | None = None  # Where TensorFlow's checkpoints are written; None: on the task of each variable.


def install(strategy: tf.distribute.Strategy) -> None:
    """Makes every save of this process atomic, and the chief's alone. Calling it again only changes the strategy."""
    global _is_chief, _io_device
    _is_chief = strategy.extended.should_checkpoint
    # Variables on a ps would be written by the ps, into the ps' own folders.
    elsewhere = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    _io_device = chief_device.DEVICE if elsewhere else None
    if getattr(saving_lib, "_tfdist_installed", False):
        return
    saving_lib._tfdist_installed = True
    _install_in_keras()
    _install_in_backup_and_restore()
    _install_in_tensorflow()
    strategy_state.install()


@contextlib.contextmanager
def whole(path: str, make_folder: bool = False) -> Iterator[str]:
    """Gives a temporary path for what is to be saved as `path`; at the end, without an exception, puts it there.

    The temporary path has the same last part, in a hidden folder `.NAME.part` beside `path`, which a killed process leaves
    behind and the next save of the same name removes. Whatever files the block makes there are moved, the one named as `path`
    last. A folder that was at `path` is moved away just before: a process killed right then leaves it complete in
    `.NAME.part/old`. On a task that is not the chief nothing is kept.

    Args:
        path: of a file or folder on a file system of this machine.
        make_folder: whether to make the folder that `path` is in; without it, that folder must exist.

    Raises:
        FileNotFoundError: when the folder that `path` is in does not exist.
    """
    global _takes_part
    final = os.path.realpath(path)
    folder, name = os.path.split(final)
    if not _is_chief:
        _takes_part, before = True, _takes_part
        try:
            with tempfile.TemporaryDirectory(prefix="tfdist-") as part:
                yield os.path.join(part, name)
        finally:
            _takes_part = before
        return
    if make_folder:
        os.makedirs(folder, exist_ok=True)
    elif not os.path.isdir(folder):
        raise FileNotFoundError(f"cannot save {path}: there is no folder {folder}; make it first")
    part = os.path.join(folder, f".{name}.part")
    shutil.rmtree(part, ignore_errors=True)
    os.mkdir(part)
    try:
        yield os.path.join(part, name)
        for made in sorted(os.listdir(part), key=lambda made: (made == name, made)):
            source, target = os.path.join(part, made), os.path.join(folder, made)
            if os.path.isdir(source):
                if os.path.isdir(target):
                    os.rename(target, os.path.join(part, "old"))
            else:
                with open(source, "rb+") as file:
                    os.fsync(file.fileno())  # Else a machine that fails could have the name on disk and not the content.
            os.replace(source, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def from_chief(strategy: tf.distribute.Strategy, content: bytes) -> bytes:
    """The chief's `content`, on every task of a MultiWorkerMirrored strategy; every task has to call it.

    Goes through the strategy's own collectives as 32-bit words: the chief's first replica gives the content, all others zeros.
    """

    def sum_of(words: tf.Tensor) -> tf.Tensor:
        def add() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            own = tf.where(tf.equal(context.replica_id_in_sync_group, 0), words, tf.zeros_like(words))
            return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

        return strategy.experimental_local_results(strategy.run(add))[0]

    total = tf.function(sum_of)
    size = int(total(tf.constant([len(content) if _is_chief else 0]))[0])
    padded = (content if _is_chief else b"").ljust(-(-size // 4) * 4, b"\0")
    words = total(tf.constant(np.frombuffer(padded, np.int32))) if size else tf.zeros([0], tf.int32)
    return bytes(words.numpy().tobytes()[:size])


def _is_here(path: Any) -> bool:
    """Whether `path` is a path on a file system of this machine: stores of objects write an object whole by themselves."""
    return isinstance(path, str | os.PathLike) and not file_utils.is_remote_path(path) and not str(path).startswith("hf://")


def _install_in_keras() -> None:
    def atomic(save: Callable[..., Any], make_folder: bool) -> Callable[..., Any]:
        @functools.wraps(save)
        def saved(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_here(filepath):
                with whole(os.fspath(filepath), make_folder or not kwargs.get("zipped", True)) as partial:
                    return save(model, partial, *args, **kwargs)
            if not _is_chief and not isinstance(filepath, io.IOBase):
                with whole(os.path.basename(str(filepath))) as partial:
                    kwargs.pop("zipped", None)
                    return save(model, partial, *args, **kwargs)
            return save(model, filepath, *args, **kwargs)

        return saved

    saving_lib.save_model = atomic(saving_lib.save_model, False)
    saving_lib.save_weights_only = atomic(saving_lib.save_weights_only, False)
    legacy_h5_format.save_model_to_hdf5 = atomic(legacy_h5_format.save_model_to_hdf5, True)
    on_train_end = keras.callbacks.ModelCheckpoint.on_train_end

    @functools.wraps(on_train_end)
    def _on_train_end(self: Any, logs: Any = None) -> None:
        on_train_end(self, logs)
        if isinstance(self.model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            from_chief(self.model.distribute_strategy, b"")  # A program that loads the file next finds it on every task.

    keras.callbacks.ModelCheckpoint.on_train_end = _on_train_end


def _install_in_backup_and_restore() -> None:
    """Makes a backup one step, and the chief's backup that of every task.

    Keras writes weights and epoch to two files; killed between the two, it would resume with the weights of one epoch at
    another. So the file of weights holds the epoch too, and that one counts; the other is written for Keras without tfdist.
    """
    callback = keras.callbacks.BackupAndRestore
    on_train_begin, on_train_end, load_model = callback.on_train_begin, callback.on_train_end, callback._load_model
    save_model = callback._save_model

    @functools.wraps(save_model)
    def _save_model(self: Any) -> None:
        if not _is_here(self.backup_dir):
            if isinstance(self.model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
                raise ValueError(
                    f"BackupAndRestore under multi_worker_mirrored needs a backup_dir on a file system of the chief, not "
                    f"{self.backup_dir}"
                )
            save_model(self)
            return
        progress = json.dumps({"epoch": self._current_epoch, "batch": self._last_batch_seen})
        if self.double_checkpoint and _is_chief and os.path.exists(self._weights_path):
            shutil.copy(self._weights_path, self._prev_weights_path)
            if os.path.exists(self._training_metadata_path):
                shutil.copy(self._training_metadata_path, self._prev_training_metadata_path)
        with whole(self._weights_path, make_folder=True) as partial:
            self.model.save_weights(partial)
            with h5py.File(partial, "a") as file:
                file.attrs[_PROGRESS] = progress
        with whole(self._training_metadata_path) as partial, open(partial, "w", encoding="utf-8") as file:
            file.write(progress)

    @functools.wraps(load_model)
    def _load_model(self: Any) -> None:
        with self.model.distribute_strategy.scope():  # It may have to make the optimizer's variables.
            load_model(self)
        if os.path.exists(self._weights_path):
            with h5py.File(self._weights_path) as file:
                if _PROGRESS in file.attrs:
                    self.model._initial_epoch = json.loads(file.attrs[_PROGRESS])["epoch"]

    @functools.wraps(on_train_begin)
    def _on_train_begin(self: Any, logs: Any = None) -> None:
        strategy = self.model.distribute_strategy
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            on_train_begin(self, logs)
            return
        # Every task restores from a copy of the chief's folder: the folder may be another on every machine.
        names = ("_weights_path", "_training_metadata_path", "_prev_weights_path", "_prev_training_metadata_path")
        paths = {name: getattr(self, name) for name in names}
        packed = from_chief(strategy, _pack(paths) if _is_chief else b"")
        with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
            zipfile.ZipFile(io.BytesIO(packed)).extractall(folder)
            try:
                for name, path in paths.items():
                    setattr(self, name, os.path.join(folder, os.path.basename(path)))
                on_train_begin(self, logs)
            finally:
                for name, path in paths.items():
                    setattr(self, name, path)

    @functools.wraps(on_train_end)
    def _on_train_end(self: Any, logs: Any = None) -> None:
        if _is_chief:
            on_train_end(self, logs)

    callback._save_model, callback._load_model = _save_model, _load_model
    callback.on_train_begin, callback.on_train_end = _on_train_begin, _on_train_end


def _pack(paths: dict[str, str]) -> bytes:
    """Those of the files that exist, as a zip archive under the last parts of their paths."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in paths.values():
            if os.path.exists(path):
                archive.write(path, os.path.basename(path))
    return packed.getvalue()


def _install_in_tensorflow() -> None:
    """Makes `tf.train.Checkpoint`, its manager and `tf.saved_model.save` (so `model.export`) do as Keras' saves.

    TensorFlow's checkpoints are atomic already; its SavedModel is not.
    """
    save, restore = TrackableSaver.save, TrackableSaver.restore
    update_state, delete_file = (
        checkpoint_management.update_checkpoint_state_internal,
        checkpoint_management._delete_file_if_exists,
    )
    save_model = saved_model_save.save_and_return_nodes

    @functools.wraps(save)
    def _save(self: Any, file_prefix: Any, checkpoint_number: Any = None, session: Any = None, options: Any = None) -> Any:
        options = _on_chief(options, tf.train.CheckpointOptions)
        if _is_chief or _takes_part:
            return save(self, file_prefix, checkpoint_number, session, options)
        with whole(os.path.basename(str(file_prefix))) as partial:
            written = save(self, partial, checkpoint_number, session, options)
        written = written.numpy().decode() if isinstance(written, tf.Tensor) else written
        return str(file_prefix) + written.removeprefix(partial)  # With its number: what the chief's is called.

    @functools.wraps(restore)
    def _restore(self: Any, save_path: Any, options: Any = None) -> Any:
        return restore(self, save_path, _on_chief(options, tf.train.CheckpointOptions))

    @functools.wraps(update_state)
    def _update_state(*args: Any, **kwargs: Any) -> None:
        if _is_chief:
            update_state(*args, **kwargs)

    @functools.wraps(delete_file)
    def _delete_file(pattern: str) -> None:
        if _is_chief:
            delete_file(pattern)

    @functools.wraps(save_model)
    def _save_saved_model(obj: Any, export_dir: Any, signatures: Any = None, options: Any = None, **kwargs: Any) -> Any:
        options = _on_chief(options, tf.saved_model.SaveOptions)
        if _is_chief and not _is_here(export_dir):
            with strategy_state.left_out():
                return save_model(obj, export_dir, signatures, options, **kwargs)
        with whole(os.fspath(export_dir), make_folder=True) as partial, strategy_state.left_out():
            return save_model(obj, partial, signatures, options, **kwargs)

    TrackableSaver.save, TrackableSaver.restore = _save, _restore
    checkpoint_management.update_checkpoint_state_internal = _update_state
    checkpoint_management._delete_file_if_exists = _delete_file
    saved_model_save.save_and_return_nodes = _save_saved_model


def _on_chief(options: Any, kind: Any) -> Any:
    """`options`, or new ones, with reading and writing on the chief where the variables are elsewhere."""
    if _io_device is None or (options is not None and options.experimental_io_device):
        return options
    options = kind() if options is None else copy.copy(options)
    options.experimental_io_device = _io_device
    return options
