"""The folder for the output of the tasks: for one job at a time, and with what an earlier job wrote there out of the way."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tfdist.strategies.checkpoint.own_folder import REPORT, OwnFolder

_JOB = ".tfdist_job"
"""The file with the id of the job in the background whose logs are beside it."""

_OURS = re.compile(
    r"(chief|worker|ps|evaluator)-\d+\.log|(fork_server|tensorboard)\.log|workers\.(json|request)(\.part)?|agent-.*\.log|"
    rf"report\.json(\.progress|\.steps)?(\.part)?|{re.escape(_JOB)}"
)
MEMORY = Path("/dev/shm")

_FULL = (errno.ENOSPC, errno.EDQUOT)


class LogFolderError(Exception):
    """A folder that cannot hold the output of a job; the message is a sentence."""


class LogFolder:
    """The folder of one job.

    Attributes:
        path: the folder.
        report_dir: a folder in memory for the chief's steps and metrics: a full disk does not lose them.
    """

    def __init__(self, log_dir: str | None, say: Callable[[str], None]) -> None:
        """Creates the folder, without a path a new one below `tfdist_logs`, and moves the files of an earlier job into a folder
        inside it.

        Raises:
            LogFolderError: if it cannot be written, or another launcher writes there now.
        """
        self._is_default = not log_dir
        self.path = Path(log_dir or os.path.join("tfdist_logs", _new_name()))
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # Programs print what not everybody may read.
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise LogFolderError(f"{error}; name a folder that can be written") from error
        try:
            self._lock_it()
            _move_earlier(self.path, say)
            _try_to_write(self.path, say)
        except OSError as error:
            os.close(self._lock)
            raise LogFolderError(f"{self.path} cannot be written: {error.strerror}; name another folder") from error
        self._reports: OwnFolder | None = None
        self.new_report_dir()

    def new_report_dir(self) -> Path:
        """Returns a new `report_dir`, for another attempt: the one before is removed with the tasks that used it."""
        self._remove_reports()
        with contextlib.suppress(OSError):
            self._reports = OwnFolder(REPORT, str(MEMORY))
        self.report_dir = Path(self._reports.name) if self._reports else self.path
        return self.report_dir

    def renew_report_dir(self) -> None:
        """Makes `report_dir` again if it is gone: systemd empties /dev/shm when the last session of its user ends."""
        if self._reports is not None:
            with contextlib.suppress(OSError):
                self._reports.renew()

    def discard(self) -> None:
        """Removes a folder in which nothing was written, because the job was not started."""
        for folder in (self.path, self.path.parent if self._is_default else None):
            try:
                if folder is not None:
                    folder.rmdir()
            except OSError:
                return  # It holds files.

    def close(self) -> None:
        """Lets other launchers use the folder."""
        self._remove_reports()
        os.close(self._lock)

    def _remove_reports(self) -> None:
        if self._reports is not None:
            self._reports.cleanup()
            self._reports = None

    def _lock_it(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise LogFolderError(f"another launcher writes to {self.path} now; name another folder") from error
        except OSError:
            pass  # Some network file systems lock nothing.


def name_job(path: Path, job_id: str) -> bool:
    """Writes into the folder of a job in the background whose logs it holds; returns whether that was possible."""
    try:
        (path / _JOB).write_text(job_id, encoding="ascii")
    except OSError:
        return False
    return True


def holder(path: Path, job_id: str) -> Path | None:
    """Returns the folder with the logs of a job that wrote to `path`: that one, or the one into which a later job moved them.

    None if neither holds them.
    """
    for folder in (path, *path.glob("earlier-*")):
        try:
            if (folder / _JOB).read_text(encoding="ascii", errors="replace") == job_id:
                return folder
        except OSError:
            pass  # It holds the logs of no job in the background.
    return None


def _new_name() -> str:
    """Returns a name that no other launcher has. In containers that share a folder, all launchers may have the process id 1."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}"


def _move_earlier(path: Path, say: Callable[[str], None]) -> None:
    files = [each for each in path.iterdir() if _OURS.fullmatch(each.name)]
    if not files:
        return
    folder = Path(tempfile.mkdtemp(prefix=f"earlier-{time.strftime('%Y%m%d-%H%M%S')}-", dir=path))
    folder.chmod(path.stat().st_mode & 0o777)
    for file in files:
        file.rename(folder / file.name)
    say(f"the logs of an earlier job in {path} are in {folder} now")


def _try_to_write(path: Path, say: Callable[[str], None]) -> None:
    """Raises OSError for a folder that does not take files. A full disk does not end a job; it is said."""
    try:
        with tempfile.TemporaryFile(dir=path, buffering=0) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        say(f"{path}: {error.strerror}; the job runs, and its logs will be incomplete")
