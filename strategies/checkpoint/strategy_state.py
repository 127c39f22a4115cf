"""Where files keep what a strategy needs beside the variables to go on exactly: in Keras' own and in TensorFlow's checkpoints.

Keras' files get one more HDF5 group, checkpoints a few more tensors. Neither Keras nor TensorFlow asks for them, so that the
files stay theirs: every strategy loads them, and so does a program without tfdist.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Protocol

import h5py
import keras
import tensorflow as tf

from tfdist.strategies.private_api import TrackableSaver, saving_lib

NAME = "tfdist_training_state"
"""The HDF5 group, and what the names of a checkpoint's tensors begin with."""

_left_out = False


class Stateful(Protocol):
    """A strategy with a state of its own; those without have neither method."""

    def training_state(self, model: Any) -> dict[str, Any]:
        """What is to be saved with `model`: names (with slashes) -> numpy arrays. Called before its variables are read."""

    def set_training_state(self, model: Any, state: dict[str, Any]) -> None:
        """Takes that back, after the variables got their values; empty from a file that has none."""


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Around saves whose files nobody goes on training from."""
    global _left_out
    outer, _left_out = _left_out, True
    try:
        yield
    finally:
        _left_out = outer


def install() -> None:
    """Makes Keras and TensorFlow save and load it. To be called once."""
    _install_in_keras()
    _install_in_tensorflow()


def _method(model: Any, name: str) -> Any:
    """That of the model's strategy; None where it has none, or `model` is no model that was compiled."""
    if _left_out or not isinstance(model, keras.Model) or getattr(model, "optimizer", None) is None:
        return None
    return getattr(model.distribute_strategy, name, None)


def _install_in_keras() -> None:
    save_state, load_state = saving_lib._save_state, saving_lib._load_state

    @functools.wraps(save_state)
    def _save_state(saveable: Any, weights_store: Any, assets_store: Any, inner_path: Any, visited_saveables: Any) -> None:
        give = None
        if not inner_path and isinstance(weights_store, saving_lib.H5IOStore):
            give = _method(saveable, "training_state")
        if give and id(saveable.optimizer) in visited_saveables:  # The user's `objects_to_skip`.
            give = None
        state = give(saveable) if give else {}
        save_state(saveable, weights_store, assets_store, inner_path, visited_saveables)
        for name, value in state.items():
            weights_store.h5_file[f"{NAME}/{name}"] = value

    @functools.wraps(load_state)
    def _load_state(saveable: Any, weights_store: Any, assets_store: Any, inner_path: Any, *args: Any, **kwargs: Any) -> None:
        take = None
        if not inner_path and isinstance(weights_store, saving_lib.H5IOStore):
            take = _method(saveable, "set_training_state")
        if take and id(saveable.optimizer) in (kwargs.get("visited_saveables") or ()):
            take = None
        load_state(saveable, weights_store, assets_store, inner_path, *args, **kwargs)
        if take:
            take(saveable, _read(weights_store.h5_file))

    saving_lib._save_state, saving_lib._load_state = _save_state, _load_state


def _read(file: Any) -> dict[str, Any]:
    state: dict[str, Any] = {}

    def note(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset):
            state[name] = found[()]

    if NAME in file:
        file[NAME].visititems(note)
    return state


def _install_in_tensorflow() -> None:
    gather, restore = TrackableSaver._gather_serialized_tensors, TrackableSaver.restore

    @functools.wraps(gather)
    def _gather_serialized_tensors(self: Any, object_graph_tensor: Any = None) -> Any:
        states = [give(model) for model, give in _models_in(self, "training_state")]
        gathered = gather(self, object_graph_tensor)
        for number, state in enumerate(states):
            tensors = {f"{NAME}/{number}/{name}": tf.constant(value) for name, value in state.items()}
            gathered[0].setdefault(None, {}).update(tensors)  # Under None are tensors that are no object's.
        return gathered

    @functools.wraps(restore)
    def _restore(self: Any, save_path: Any, options: Any = None) -> Any:
        status = restore(self, save_path, options)
        if save_path is not None and tf.executing_eagerly():
            reader = None
            for number, (model, take) in enumerate(_models_in(self, "set_training_state")):
                reader = reader or tf.train.load_checkpoint(save_path)
                prefix = f"{NAME}/{number}/"
                names = [name for name in reader.get_variable_to_shape_map() if name.startswith(prefix)]
                take(model, {name.removeprefix(prefix): reader.get_tensor(name) for name in names})
        return status

    TrackableSaver._gather_serialized_tensors, TrackableSaver.restore = _gather_serialized_tensors, _restore


def _models_in(saver: Any, name: str) -> list[tuple[Any, Any]]:
    """The compiled models that a checkpoint holds, in its order, with their strategies' methods `name`, where there are any."""
    if _left_out:
        return []
    objects, _ = saver._graph_view.breadth_first_traversal()
    return [(each, method) for each in objects if (method := _method(each, name))]
