"""Keras' callbacks that write files, or send logs to a server: these come from the chief alone."""

import os
import weakref
from typing import Any

import keras

from tfdist.strategies.checkpoint.own_folder import OwnFolder

_PATHS = {keras.callbacks.CSVLogger: "filename", keras.callbacks.TensorBoard: "log_dir"}
"""Callbacks that do nothing but write -> the attribute that says where."""

_SENDS = (keras.callbacks.RemoteMonitor,)
"""Callbacks that do nothing but send logs."""


def without_files(callbacks: list[Any]) -> list[Any]:
    """Returns the callbacks for a task that is not the chief.

    Those that only write files or send logs are left out. A subclass may do more, such as set the learning rate, or call
    `predict`, in which all tasks have to take part. It runs, and what it writes goes into a folder that is removed with it.
    """
    kept = [callback for callback in callbacks if type(callback) not in (*_PATHS, *_SENDS)]
    for callback in kept:
        for kind, attribute in _PATHS.items():
            if isinstance(callback, kind):
                _redirect(callback, attribute)
    return kept


def _redirect(callback: Any, attribute: str) -> None:
    if getattr(callback, "_tfdist_redirected", False):
        return
    folder = OwnFolder()
    weakref.finalize(callback, folder.cleanup)
    setattr(callback, attribute, os.path.join(folder.name, os.path.basename(os.path.normpath(getattr(callback, attribute)))))
    callback._tfdist_redirected = True
