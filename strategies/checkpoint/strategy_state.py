"""What a strategy needs beside the variables to resume exactly, in Keras' files and in TensorFlow's checkpoints.

Keras' files get one more HDF5 group, checkpoints a few more tensors. Neither Keras nor TensorFlow looks for them. So the files
stay theirs: every strategy loads them, and so does a program without tfdist.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import h5py
import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.private_api import file_patches, saving_lib

NAME = "tfdist_training_state"
"""The HDF5 group, and the prefix of the names of a checkpoint's tensors."""

_ADDED_TO_NUMPY = 2  # As `numpy.dtype.isbuiltin` says.

_left_out = False
_set_aside: dict[str, Any] | None = None


class Stateful(Protocol):
    """A strategy with a state; a strategy without one has neither method."""

    def training_state(self, model: Any) -> dict[str, Any]:
        """Returns what is saved with `model`: names (with slashes) -> numpy arrays. Called before its variables are read."""

    def set_training_state(self, model: Any, state: dict[str, Any]) -> None:
        """Takes a saved state, after the variables have their values. It is empty if the file has none."""


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Leaves the state out of the files that are saved inside the block, because no training resumes from them."""
    global _left_out
    outer, _left_out = _left_out, True
    try:
        yield
    finally:
        _left_out = outer


@contextlib.contextmanager
def set_aside() -> Iterator[dict[str, Any]]:
    """Keeps the state of Keras' files that are saved inside the block in memory. Yields it, for `add` after the block."""
    global _set_aside
    outer, _set_aside = _set_aside, {}
    try:
        yield _set_aside
    finally:
        _set_aside = outer


def storable(value: Any) -> Any:
    """Returns an array as HDF5 stores it. It has no bfloat16 and no float8, which float32 holds exactly."""
    is_added = np.asarray(value).dtype.isbuiltin == _ADDED_TO_NUMPY
    return value.astype(np.float32) if is_added else value


def add(file: Any, state: dict[str, Any]) -> None:
    """Adds the state of a strategy to an open HDF5 file of Keras."""
    for name, value in state.items():
        put(file, f"{NAME}/{name}", value)


def put(file: Any, name: str, value: Any) -> None:
    """Adds an array to an open HDF5 file. One that `storable` changes has an attribute `dtype`."""
    stored = storable(value)
    dataset = file.create_dataset(name, data=stored)
    if stored is not value:
        dataset.attrs["dtype"] = value.dtype.name


def put_all(file: Any, name: str, values: list[Any]) -> None:
    """Adds arrays to an open HDF5 file, in a group."""
    for number, value in enumerate(values):
        put(file, f"{name}/{number}", value)


def install() -> None:
    """Makes Keras and TensorFlow save and load the state. Calling it again does nothing."""
    file_patches.SAVE_STATE.patch(_save_state)
    file_patches.LOAD_STATE.patch(_load_state)
    file_patches.CHECKPOINT_TENSORS.patch(_checkpoint_tensors)
    file_patches.CHECKPOINT_RESTORE.patch(_restore)


def _method(model: Any, name: str) -> Any:
    """Returns the method of the model's strategy; None if it has none, or if `model` is not a compiled model."""
    if _left_out or not isinstance(model, keras.Model) or getattr(model, "optimizer", None) is None:
        return None
    return getattr(model.distribute_strategy, name, None)


def _method_of_file(saveable: Any, name: str, inner_path: Any, store: Any, visited: Any) -> Any:
    """Returns `_method` of the outermost model in a store of HDF5; None if the user skips its optimizer (`objects_to_skip`)."""
    method = None if inner_path or not isinstance(store, saving_lib.H5IOStore) else _method(saveable, name)
    return None if method and id(saveable.optimizer) in visited else method


# Replacements. The first parameter is the function that they replace.


def _save_state(
    original: Callable[..., Any], saveable: Any, weights_store: Any, assets_store: Any, inner_path: Any, visited_saveables: Any
) -> None:
    state_of = _method_of_file(saveable, "training_state", inner_path, weights_store, visited_saveables)
    state = state_of(saveable) if state_of else {}
    original(saveable, weights_store, assets_store, inner_path, visited_saveables)
    if _set_aside is not None:
        _set_aside.update(state)
    elif state:  # Stores of other formats have no `h5_file`.
        add(weights_store.h5_file, state)


def _load_state(
    original: Callable[..., Any],
    saveable: Any,
    weights_store: Any,
    assets_store: Any,
    inner_path: Any,
    *args: Any,
    **kwargs: Any,
) -> None:
    visited = kwargs.get("visited_saveables") or ()
    set_state = _method_of_file(saveable, "set_training_state", inner_path, weights_store, visited)
    original(saveable, weights_store, assets_store, inner_path, *args, **kwargs)
    if set_state:
        with _file_of_state(weights_store) as file:
            set_state(saveable, _read(file))


@contextlib.contextmanager
def _file_of_state(store: Any) -> Iterator[Any]:
    """Yields the open file of a store that may have the state: of weights in several files (`max_shard_size`) the last one.

    Keras leaves another one open, that with the first of the values which it has read last.
    """
    names = {name for found in _weight_map_of(store).values() for name in ([found] if isinstance(found, str) else found)}
    last = os.path.join(os.path.dirname(store.h5_file.filename), max(names)) if names else store.h5_file.filename
    if last == store.h5_file.filename:
        yield store.h5_file
        return
    with h5py.File(last, "r") as file:
        yield file


def _weight_map_of(store: Any) -> Any:
    """Returns the index of weights in several files, variables -> names of files, a dict. It is empty for one file."""
    if not isinstance(store, saving_lib.ShardedH5IOStore) or store.archive:
        return {}
    return store.sharding_config["weight_map"]


def _read(file: Any) -> dict[str, Any]:
    state: dict[str, Any] = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            state[name] = value_of(item)

    if NAME in file:
        file[NAME].visititems(add)
    return state


def value_of(dataset: Any) -> Any:
    """Returns the array of an HDF5 dataset, in the dtype that `put` got."""
    value = dataset[()]
    if "dtype" in dataset.attrs:
        return value.astype(tf.as_dtype(dataset.attrs["dtype"]).as_numpy_dtype)
    if dataset.dtype == "V2":  # A bfloat16 of a file that was saved before such values had the attribute.
        return np.asarray(value).view(tf.bfloat16.as_numpy_dtype)
    return value


def values_of(group: Any) -> list[Any]:
    """Returns the arrays that `put_all` got, from its group; none from an empty dict."""
    return [value_of(group[str(number)]) for number in range(len(group))]


def _checkpoint_tensors(original: Callable[..., Any], saver: Any, object_graph_tensor: Any = None) -> Any:
    states = [state_of(model) for model, state_of in _models_in(saver, "training_state")]
    gathered = original(saver, object_graph_tensor)
    for number, state in enumerate(states):
        tensors = {f"{NAME}/{number}/{name}": tf.constant(value) for name, value in state.items()}
        gathered[0].setdefault(None, {}).update(tensors)  # The key None is for tensors that belong to no object.
    return gathered


def _restore(original: Callable[..., Any], saver: Any, save_path: Any, options: Any = None) -> Any:
    status = original(saver, save_path, options)
    if save_path is not None and tf.executing_eagerly():
        reader = None
        for number, (model, set_state) in enumerate(_models_in(saver, "set_training_state")):
            # As TensorFlow opens it: `tf.train.load_checkpoint` takes a folder of the same name instead.
            reader = reader or tf.compat.v1.train.NewCheckpointReader(save_path)
            prefix = f"{NAME}/{number}/"
            names = [name for name in reader.get_variable_to_shape_map() if name.startswith(prefix)]
            set_state(model, {name.removeprefix(prefix): reader.get_tensor(name) for name in names})
    return status


def _models_in(saver: Any, name: str) -> list[tuple[Any, Any]]:
    """Returns the compiled models in a checkpoint, in its order, each with the method `name` of its strategy, if it has one."""
    if _left_out:
        return []
    objects, _ = saver._graph_view.breadth_first_traversal()
    return [(each, method) for each in objects if (method := _method(each, name))]
