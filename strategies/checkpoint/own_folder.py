"""Temporary folders that do not stay behind for good: a task that is killed leaves its own, and a later one removes it."""

import contextlib
import fcntl
import glob
import os
import shutil
import stat
import tempfile
import weakref

from tfdist.strategies.checkpoint import folder_lock

COPY, AGENT = "copy", "agent"
"""What folders are for: copies of a backup, and the files of an agent (launch/backends/agents)."""


class OwnFolder:
    """A temporary folder, which this process keeps locked as long as it needs it. It can be used as a context manager.

    The first thing that a new one does is to remove those of processes that have ended without removing theirs. Copies of a
    backup may be large.

    Attributes:
        name: the path of the folder.
    """

    def __init__(self, use: str = COPY) -> None:
        """Makes and locks it.

        Args:
            use: what it is for, which its name says.
        """
        prefix = _prefix(use)
        _remove_left_over(prefix)
        while True:
            self.name = tempfile.mkdtemp(prefix=prefix)
            try:
                lock = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue  # Another process has taken it for one that is left over, and removed it.
            with contextlib.suppress(OSError):  # Some file systems lock nothing.
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.isdir(self.name):
                break
            os.close(lock)  # So it was removed a moment later.
        folder_lock.of_this_process.add(lock)
        self._remove = weakref.finalize(self, _remove, self.name, lock)

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Removes the folder with what is in it. Calling it again does nothing."""
        self._remove()


def _remove(path: str, lock: int) -> None:
    if lock in folder_lock.of_this_process:  # Else this is a process that the owner has forked.
        shutil.rmtree(path, ignore_errors=True)
        folder_lock.of_this_process.remove(lock)
        os.close(lock)


def _prefix(use: str) -> str:
    """Begins the names of this machine's folders: locks of another one may be unknown here, where machines share the folder."""
    return f"tfdist-{use}-{os.uname().nodename}-"


def _remove_left_over(prefix: str) -> None:
    """Removes the folders of this user that no process has locked."""
    for path in glob.glob(glob.escape(os.path.join(tempfile.gettempdir(), prefix)) + "*"):
        with contextlib.suppress(OSError):  # It is another user's, or locked, or has just been removed.
            found = os.lstat(path)
            if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
