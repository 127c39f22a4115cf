"""Files that appear complete: each is written to a temporary path beside the final one and renamed."""

import contextlib
import ctypes
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.strategies.checkpoint import checkpoint_files
from tfdist.strategies.checkpoint.own_folder import OwnFolder
from tfdist.strategies.private_api import file_utils

_HERE, _RENAME_EXCHANGE = -100, 2
"""AT_FDCWD of <fcntl.h> and RENAME_EXCHANGE of <stdio.h>, on Linux."""

_is_chief = True
_is_participating = False


def set_chief(is_chief: bool) -> None:
    """Sets whether this process keeps what it saves."""
    global _is_chief
    _is_chief = is_chief


def is_chief() -> bool:
    """Returns whether this process keeps what it saves."""
    return _is_chief


def is_participating() -> bool:
    """Returns whether a task other than the chief is inside `atomic_path`: a SavedModel contains a checkpoint."""
    return _is_participating


def is_local(path: Any) -> bool:
    """Returns whether `path` is a path on a file system of this machine. Object stores write each object atomically."""
    return isinstance(path, str | os.PathLike) and not file_utils.is_remote_path(path) and not str(path).startswith("hf://")


def _exchange(first: str, second: str) -> bool:
    """Lets two folders change places in one operation. Returns False, and does nothing, where that is not possible."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return rename is not None and not rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _RENAME_EXCHANGE)


@contextlib.contextmanager
def atomic_path(path: str, make_folder: bool = False, is_elsewhere: Callable[[str], bool] | None = None) -> Iterator[str]:
    """Yields a temporary path to save to in place of `path`. At the end, without an exception, moves the files to `path`.

    The temporary path has the same last part, in a hidden folder `.NAME.part` beside `path`. A killed process leaves that
    folder behind, and the next save of the same name removes it. What is moved:

    * all files that the block makes there, the one named as `path` last;
    * those of a TensorFlow checkpoint as checkpoint_files.py says;
    * a folder: it changes places with the one at `path`. Where the file system cannot do that at once, the old one is moved
      away just before, and a process killed in between leaves it complete in `.NAME.part/old`;
    * on a task other than the chief nothing, except for what `is_elsewhere`.

    Args:
        path: of a file or folder on a file system of this machine.
        make_folder: whether to make the folder of `path` if it does not exist.
        is_elsewhere: returns whether a task other than the chief keeps what it has saved for `path`.

    Raises:
        FileNotFoundError: if the folder of `path` does not exist.
    """
    global _is_participating
    final = os.path.realpath(path)
    name = os.path.basename(final)
    if not _is_chief:
        _is_participating, before = True, _is_participating
        try:
            with OwnFolder() as part:
                yield os.path.join(part, name)
                if is_elsewhere is not None and is_elsewhere(path):
                    with _moved(final, make_folder) as own:
                        shutil.copytree(part, os.path.dirname(own), dirs_exist_ok=True)
        finally:
            _is_participating = before
        return
    with _moved(final, make_folder) as partial:
        yield partial


@contextlib.contextmanager
def _moved(final: str, make_folder: bool) -> Iterator[str]:
    """Yields a temporary path for the files of `final`, and moves them there."""
    folder, name = os.path.split(final)
    if make_folder:
        os.makedirs(folder, exist_ok=True)
    elif not os.path.isdir(folder):
        raise FileNotFoundError(f"cannot save {final}: there is no folder {folder}; make it first")
    part = os.path.join(folder, f".{name}.part")
    shutil.rmtree(part, ignore_errors=True)
    os.mkdir(part)
    try:
        yield os.path.join(part, name)
        checkpoint_files.replace(part, folder, name)
        for made in sorted(os.listdir(part), key=lambda made: (made == name, made)):
            source, target = os.path.join(part, made), os.path.join(folder, made)
            if os.path.isdir(source):
                if os.path.isdir(target):
                    if _exchange(source, target):
                        continue
                    os.rename(target, os.path.join(part, "old"))
            else:
                with open(source, "rb+") as file:
                    os.fsync(file.fileno())  # Otherwise a machine that fails may have the name on disk without the content.
            os.replace(source, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
