"""Every save of this process, by Keras or TensorFlow: complete or absent, and kept on the chief alone.

Keras writes straight to the final name, on every task that runs the program. A process killed in the middle leaves half a file
there, and two tasks that share a folder overwrite each other's files. `install()` sends every save to a temporary path
(atomic_path.py). On a task other than the chief a save only takes part in reading the variables, and waits for the chief's
(save_order.py); it is kept only where it goes to another path than the chief's, such as a temporary folder. The files are
Keras' and TensorFlow's own; any strategy loads them, and so does a program without tfdist.
"""

import copy
import io
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.checkpoint import (
    backup,
    data_position,
    memory_file,
    save_order,
    store_files,
    strategy_state,
    unsaved_attributes,
)
from tfdist.strategies.checkpoint.atomic_path import atomic_path, is_chief, is_local, is_participating, set_chief
from tfdist.strategies.private_api import file_patches
from tfdist.strategies.runtime import chief_device

_io_device: str | None = None
"""The device that reads and writes TensorFlow's checkpoints; None: the task of each variable."""


def install(strategy: tf.distribute.Strategy) -> None:
    """Makes every save of this process atomic, and the chief's alone. Calling it again only changes the strategy."""
    global _io_device
    set_chief(strategy.extended.should_checkpoint)
    save_order.install(strategy)
    # A ps would write its variables into its own folders.
    on_servers = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    _io_device = chief_device.DEVICE if on_servers else None
    file_patches.SAVE_MODEL.patch(_save_keras)
    file_patches.SAVE_WEIGHTS.patch(_save_weights)
    file_patches.SAVE_H5.patch(_save_h5)
    file_patches.MAKE_FOLDER.patch(_make_folder)
    file_patches.CHECKPOINT_SAVE.patch(_save_checkpoint)
    file_patches.CHECKPOINT_RESTORE.patch(_restore_checkpoint)
    file_patches.CHECKPOINT_STATE.patch(_on_chief_only)
    file_patches.CHECKPOINT_DELETE.patch(_on_chief_only)
    file_patches.SAVE_SAVED_MODEL.patch(_save_saved_model)
    store_files.install()
    data_position.install()
    backup.install()
    strategy_state.install()
    unsaved_attributes.install()


# Replacements. The first parameter is the function that they replace.


def _save_keras(original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    return _atomically(original, not kwargs.get("zipped", True), model, filepath, *args, **kwargs)


def _save_weights(
    original: Callable[..., Any], model: Any, filepath: Any, max_shard_size: Any = None, objects_to_skip: Any = None
) -> Any:
    if max_shard_size is not None or not is_local(filepath) or not str(filepath).endswith(".weights.h5"):
        return _save_keras(original, model, filepath, max_shard_size=max_shard_size, objects_to_skip=objects_to_skip)
    with save_order.after_chief(filepath):
        memory_file.write(memory_file.save_weights(model, objects_to_skip), os.fspath(filepath))


def _save_h5(original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    return _atomically(original, True, model, filepath, *args, **kwargs)


def _make_folder(original: Callable[..., Any], path: Any) -> Any:
    try:
        return original(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _atomically(save: Callable[..., Any], make_folder: bool, model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    with save_order.after_chief(filepath):
        if is_local(filepath):
            with atomic_path(os.fspath(filepath), make_folder, save_order.is_elsewhere) as partial:
                return save(model, partial, *args, **kwargs)
        if not is_chief() and not isinstance(filepath, io.IOBase):
            with atomic_path(os.path.basename(str(filepath))) as partial:
                kwargs.pop("zipped", None)
                return save(model, partial, *args, **kwargs)
        return save(model, filepath, *args, **kwargs)


def _save_checkpoint(
    original: Callable[..., Any],
    saver: Any,
    file_prefix: Any,
    checkpoint_number: Any = None,
    session: Any = None,
    options: Any = None,
) -> Any:
    options = _with_io_device(options, tf.train.CheckpointOptions)
    # TensorFlow writes a new checkpoint under temporary names. One that exists already it would destroy first.
    is_new = not (checkpoint_number is None and is_local(file_prefix) and os.path.exists(f"{os.fspath(file_prefix)}.index"))
    with save_order.after_chief(file_prefix):
        if is_participating() or (is_chief() and is_new):
            return original(saver, file_prefix, checkpoint_number, session, options)
        if is_local(file_prefix):  # As TensorFlow does. Its tutorials let other tasks save to a folder, which they remove then.
            os.makedirs(os.path.dirname(os.path.abspath(file_prefix)), exist_ok=True)
        with atomic_path(os.fspath(file_prefix) if is_chief() else os.path.basename(str(file_prefix))) as partial:
            written = original(saver, partial, checkpoint_number, session, options)
    written = written.numpy().decode() if isinstance(written, tf.Tensor) else written
    return str(file_prefix) + written.removeprefix(partial)  # The name of the chief's checkpoint, with its number.


def _restore_checkpoint(original: Callable[..., Any], saver: Any, save_path: Any, options: Any = None) -> Any:
    return original(saver, save_path, _with_io_device(options, tf.train.CheckpointOptions))


def _on_chief_only(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    if is_chief():
        original(*args, **kwargs)


def _save_saved_model(
    original: Callable[..., Any], obj: Any, export_dir: Any, signatures: Any = None, options: Any = None, **kwargs: Any
) -> Any:
    options = _with_io_device(options, tf.saved_model.SaveOptions)
    with save_order.after_chief(export_dir), strategy_state.left_out():
        if is_chief() and not is_local(export_dir):
            return original(obj, export_dir, signatures, options, **kwargs)
        with atomic_path(os.fspath(export_dir), make_folder=True, is_elsewhere=save_order.is_elsewhere) as partial:
            return original(obj, partial, signatures, options, **kwargs)


def _with_io_device(options: Any, kind: Any) -> Any:
    """Returns `options`, or new options of this kind, that read and write on the chief if the variables are on a ps."""
    if _io_device is None or (options is not None and options.experimental_io_device):
        return options
    options = kind() if options is None else copy.copy(options)
    options.experimental_io_device = _io_device
    return options
