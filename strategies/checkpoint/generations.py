"""Two generations of an HDF5 file, each with a checksum: the latest, and the one before it.

A disk that fills up, a copy that breaks off or a bad sector leaves a file that nobody may train from. HDF5 notices a file that
is cut off, but not a changed number. So a sealed file ends with a checksum of all bytes before it, after the end that HDF5
knows of: h5py and Keras read it as any other.
"""

import hashlib
import logging
import os
from typing import Any

import h5py

from tfdist.strategies.checkpoint import checkpoint_files

_MARK = b"tfdist sha256 "
_SEAL_BYTES = len(_MARK) + 64
_PIECE_BYTES = 2**20

_whole: set[tuple[Any, ...]] = set()
"""Path, inode, size and time of files that were found whole: a start asks several times, and they may be large."""

_log = logging.getLogger("tfdist")


def seal(path: str) -> None:
    """Adds the checksum to a complete file."""
    with open(path, "ab") as file:
        file.write(_MARK + _checksum(path, os.path.getsize(path)).encode())


def damage(path: str) -> str | None:
    """Returns what is wrong with a file, as the end of a sentence; None for a whole one.

    A file without a checksum, as Keras writes it without tfdist, is whole if HDF5 can open it.
    """
    try:
        found = os.stat(path)
        key, size = (path, found.st_ino, found.st_size, found.st_mtime_ns), found.st_size - _SEAL_BYTES
        if key in _whole:
            return None
        with open(path, "rb") as file:
            file.seek(max(size, 0))
            end = file.read()
        if end.startswith(_MARK) and _checksum(path, size).encode() != end[len(_MARK) :]:
            return "was changed after it was written: its checksum differs"
        with h5py.File(path):
            _whole.add(key)
            return None
    except OSError as error:
        return f"cannot be read ({error})"


def keep(path: str, earlier: str) -> None:
    """Makes `earlier` the same file as `path`, if that exists. It appears complete, and `path` stays."""
    if not os.path.exists(path) or (os.path.exists(earlier) and os.path.samefile(path, earlier)):
        return  # Of two links to one file a rename removes neither.
    partial = f"{earlier}.part"
    if os.path.lexists(partial):
        os.remove(partial)
    checkpoint_files.link(path, partial)
    os.replace(partial, earlier)


def use_earlier(path: str, earlier: str, reason: str) -> None:
    """Puts the earlier file in the place of `path`, which is damaged, and says so."""
    _log.warning("%s %s; the training continues from the backup before it, %s", path, reason, earlier)
    keep(earlier, path)


def _checksum(path: str, size: int) -> str:
    """Returns the SHA-256 of the first `size` bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while size > 0 and (piece := file.read(min(_PIECE_BYTES, size))):
            digest.update(piece)
            size -= len(piece)
    return digest.hexdigest()
