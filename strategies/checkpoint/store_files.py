"""Files that programs write with Keras' `H5IOStore` themselves, as KerasHub does in `save_lora_weights`.

HDF5 locks a file that it writes, so the second task to open it would fail. Such a store is filled in memory on every task, and
its file is written when it is closed, as that of `save_weights` (atomic_saving.py).
"""

import os
import pathlib
import weakref
from collections.abc import Callable
from typing import Any

from tfdist.strategies.checkpoint import memory_file, save_order
from tfdist.strategies.checkpoint.atomic_path import is_chief, is_local
from tfdist.strategies.private_api import file_patches


def install() -> None:
    """Applies the rule to stores that are opened from now on."""
    file_patches.H5_STORE["__init__"].patch(_open)
    file_patches.H5_STORE["close"].patch(_close)


def _open(original: Callable[..., None], store: Any, path_or_io: Any, archive: Any = None, mode: str = "r") -> None:
    if mode != "w" or archive is not None or not is_local(path_or_io) or save_order.is_inside():
        original(store, path_or_io, archive, mode)
        return
    memory = memory_file.MemoryFile()
    original(store, memory, None, mode)
    store.path_or_io = pathlib.Path(path_or_io)
    # HDF5 completes a file that nobody has closed when it is collected.
    store._tfdist_written = weakref.finalize(store, _write_unclosed, store.h5_file, memory, os.path.abspath(path_or_io))


def _close(original: Callable[..., None], store: Any) -> None:
    original(store)
    written = vars(store).get("_tfdist_written")
    unclosed = written and written.detach()
    if unclosed:
        _, _, (_, memory, _), _ = unclosed
        with save_order.after_chief(store.path_or_io):
            memory_file.write(memory, os.fspath(store.path_or_io))


def _write_unclosed(h5_file: Any, memory: memory_file.MemoryFile, path: str) -> None:
    if is_chief():
        h5_file.close()
        with save_order.alone():
            memory_file.write(memory, path)
