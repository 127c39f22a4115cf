"""Prevents two programs from using one folder at the same time: each would continue from, or evaluate, the other's weights."""

import contextlib
import errno
import fcntl
import os
import time

from tfdist.errors import ClusterError, Source
from tfdist.strategies.checkpoint.environment import FOLDER

WAIT_SECONDS = 5.0
"""How long the program of an attempt that was killed may take to end."""

POLL_SECONDS = 0.2

_held: dict[str, int] = {}
"""The descriptors of the folders that this program has locked."""

of_this_process: set[int] = set()
"""The descriptors of all locked folders. A process that this one forks, which may outlive it, closes them."""


def lock(
    folder: str,
    seconds: float = WAIT_SECONDS,
    *,
    variable: str = FOLDER,
    content: str = "the backup",
    flag: str = "--backup_dir",
) -> int | None:
    """Locks a folder until the process ends. Returns its descriptor; None if the file system does not support locks.

    Args:
        folder: the folder, which is created if it does not exist.
        seconds: how long to wait for another program that has it.
        variable: the environment variable that names the folder, for the message.
        content: what the folder holds, for the message.
        flag: the flag that names the folder, for the message.

    Raises:
        ClusterError: if another program has it locked.
    """
    if folder in _held:
        return _held[folder]
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None  # The first file that is written there says so.
    try:
        is_ours = _take(descriptor, seconds)
    except OSError:
        os.close(descriptor)
        return None  # Some network file systems lock nothing.
    if not is_ours:
        os.close(descriptor)
        raise Source("environment", variable).error(
            f"{folder} holds {content} of another program that runs now; name another folder ({flag}), or end that program"
        )
    of_this_process.add(descriptor)
    _held[folder] = descriptor
    return descriptor


def renew(folder: str) -> None:
    """Locks a folder again that this program has locked, if it was removed and another one is in its place.

    Raises:
        OSError: if another program has locked that one.
    """
    held = _held.get(folder)
    if held is None or os.path.samestat(os.fstat(held), os.stat(folder)):
        return
    del _held[folder]  # Its descriptor stays open.
    try:
        lock(folder, 0.0)
    except ClusterError as error:
        _held[folder] = held
        raise OSError(errno.EBUSY, "the folder was removed, and another program that runs now uses it", folder) from error


def is_locked(folder: str) -> bool:
    """Returns whether another program has locked a folder, and does not end within `WAIT_SECONDS`."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False  # There is none.
    try:
        return not _take(descriptor, WAIT_SECONDS)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _take(descriptor: int, seconds: float) -> bool:
    """Locks an open folder; returns whether that was possible within some seconds. Raises OSError where nothing is locked."""
    latest = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= latest:
                return False
            time.sleep(POLL_SECONDS)


def _close_in_child() -> None:
    for descriptor in of_this_process:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    of_this_process.clear()


os.register_at_fork(after_in_child=_close_in_child)
