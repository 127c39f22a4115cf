"""Prevents two programs from using one backup folder at the same time: each would continue from the other's weights."""

import contextlib
import fcntl
import functools
import os
import time

from tfdist.errors import Source
from tfdist.strategies.checkpoint.environment import FOLDER

WAIT_SECONDS = 5.0
"""How long the program of an attempt that was killed may take to end."""

POLL_SECONDS = 0.2

_held: dict[str, int] = {}
"""The descriptors of the folders that this program has locked."""


def lock(folder: str, seconds: float = WAIT_SECONDS) -> int | None:
    """Locks a folder until the process ends. Returns its descriptor; None if the file system does not support locks.

    Args:
        folder: the folder, which is created if it does not exist.
        seconds: how long to wait for another program that has it.

    Raises:
        ClusterError: if another program has it locked.
    """
    if folder in _held:
        return _held[folder]
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None  # The first backup says so.
    latest = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.register_at_fork(after_in_child=functools.partial(_close, descriptor))  # A child may outlive the program.
            _held[folder] = descriptor
            return descriptor
        except BlockingIOError:
            if time.monotonic() < latest:
                time.sleep(POLL_SECONDS)
                continue
            os.close(descriptor)
            raise Source("environment", FOLDER).error(
                f"{folder} holds the backup of another program that runs now; name another folder (--backup_dir), or end that "
                "program"
            ) from None
        except OSError:
            os.close(descriptor)
            return None  # Some network file systems lock nothing.


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)
