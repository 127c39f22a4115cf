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

COPY, AGENT, REPORT = "copy", "agent", "report"
"""What folders are for: copies of a backup, the files of an agent (launch/backends/agents), and the steps and metrics of a job
(launch/supervision/log_folder.py)."""


class OwnFolder:
    """A temporary folder, which this process keeps locked as long as it needs it. It can be used as a context manager.

    The first thing that a new one does is to remove those of processes that have ended without removing theirs. Copies of a
    backup may be large.

    Attributes:
        name: the path of the folder.
    """

    def __init__(self, use: str = COPY, place: str | None = None) -> None:
        """Makes and locks it.

        Args:
            use: what it is for, which its name says.
            place: the folder in which it is. Default: that for temporary files.

        Raises:
            OSError: if it cannot be made there.
        """
        prefix = _prefix(use)
        _remove_left_over(os.path.join(place or tempfile.gettempdir(), prefix))
        while not self._lock(tempfile.mkdtemp(prefix=prefix, dir=place)):
            pass  # Another process has taken it for one that is left over, and removed it.

    def renew(self) -> None:
        """Makes it again, empty, if it is gone: systemd empties /dev/shm after a user's last session. Raises OSError."""
        if not os.path.isdir(self.name):
            os.mkdir(self.name, 0o700)
            self._lock(self.name)

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Removes the folder with what is in it. Calling it again does nothing."""
        self._remove()

    def _lock(self, path: str) -> bool:
        """Locks a new folder; returns whether it is still there."""
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return False
        with contextlib.suppress(OSError):  # Some file systems lock nothing.
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(path):  # It was removed a moment later.
            os.close(lock)
            return False
        folder_lock.of_this_process.add(lock)
        self.name, self._remove = path, weakref.finalize(self, _remove, path, lock)
        return True


def _remove(path: str, lock: int) -> None:
    if lock in folder_lock.of_this_process:  # Else this is a process that the owner has forked.
        shutil.rmtree(path, ignore_errors=True)
        folder_lock.of_this_process.remove(lock)
        os.close(lock)


def _prefix(use: str) -> str:
    """Begins the names of this machine's folders: locks of another one may be unknown here, where machines share the folder."""
    return f"tfdist-{use}-{os.uname().nodename}-"


def _remove_left_over(beginning: str) -> None:
    """Removes the folders of this user whose paths begin so, and that no process has locked."""
    for path in glob.glob(glob.escape(beginning) + "*"):
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
