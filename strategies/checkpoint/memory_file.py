"""Weights in an HDF5 file in memory, from where they go to the disk.

HDF5 cannot write to a full disk: it ends the process with a segmentation fault when it closes the file. From memory the bytes
go to the disk by ordinary writes, whose errors are exceptions. They may also go there beside the training.
"""

import io
from typing import Any

from tfdist.strategies.checkpoint import save_order
from tfdist.strategies.checkpoint.atomic_path import atomic_path, is_chief
from tfdist.strategies.private_api import file_patches, saving_lib

MemoryFile = io.BytesIO


def save_weights(model: Any, objects_to_skip: Any = None) -> MemoryFile:
    """Returns the weights of a model as Keras saves them. Every task of multi_worker_mirrored has to call it.

    Args:
        model: the Keras model.
        objects_to_skip: what Keras leaves out, or None.

    Raises:
        ValueError: if the model is not built.
    """
    if not model.built:
        file_patches.SAVE_WEIGHTS.original(model, "unbuilt.weights.h5")  # It raises.
    memory = MemoryFile()
    store = saving_lib.H5IOStore(memory, mode="w")
    visited = {id(each) for each in objects_to_skip or ()}
    saving_lib._save_state(model, weights_store=store, assets_store=None, inner_path="", visited_saveables=visited)
    store.close()
    return memory


def write(memory: MemoryFile, path: str) -> None:
    """Writes the content to a file at once, where this task keeps it. To be called inside `save_order.after_chief`.

    Raises:
        OSError: if the disk is full, or there is no such folder.
    """
    if is_chief() or save_order.is_elsewhere(path):
        with atomic_path(path, is_elsewhere=save_order.is_elsewhere) as partial:
            copy_to(memory, partial)


def copy_to(memory: MemoryFile, path: str) -> None:
    """Writes the content to a new file.

    Raises:
        OSError: if the disk is full, for example.
    """
    with open(path, "wb") as file, memory.getbuffer() as content:
        file.write(content)
