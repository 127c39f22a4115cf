"""`BackgroundJobs`: status, logs and end of the jobs that a launcher supervises in the background, asked from any process."""

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdist.errors import nearest
from tfdist.launch.backends.interface import BackendError, LogLine
from tfdist.launch.background.job_folder import JobFolder, ProcessName
from tfdist.launch.jobs.job_status import JobStatus
from tfdist.launch.jobs.settings import END_SECONDS, GRACE_SECONDS
from tfdist.launch.supervision import log_folder

POLL_SECONDS = 0.2
_READ_BYTES = 1 << 20


class BackgroundJobs:
    """The verbs of `Detached`, except `submit`, for the jobs of one attached back end."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def status(self, job_id: str) -> JobStatus:
        """See `Detached`."""
        return JobFolder.open(self._backend, job_id).status()

    def logs(self, job_id: str, task: str | None, follow: bool) -> Iterator[LogLine]:
        """See `Detached`."""
        folder = JobFolder.open(self._backend, job_id)
        path = folder.output
        if task is not None:
            path = _log_of(task, folder)
        for line in _lines(path, folder, follow):
            yield LogLine.of_launcher(line) if task is None else LogLine(task, line)

    def cancel(self, job_id: str) -> None:
        """See `Detached`. Returns when the supervisor has ended the job."""
        folder = JobFolder.open(self._backend, job_id)
        if folder.status().state.is_final:
            return
        supervisor = folder.supervisor
        if supervisor is None or not supervisor.is_here:
            raise BackendError(f"the supervisor of this job runs elsewhere: {folder.status().reason or 'it has no name yet'}")
        _end(supervisor, END_SECONDS + float(folder.job.get("grace_period", GRACE_SECONDS)))


def _end(supervisor: ProcessName, patience: float) -> None:
    """Ends a process, after `patience` seconds by SIGKILL, and waits until it has ended. Raises BackendError if it does not."""
    try:
        process: int | None = os.pidfd_open(supervisor.pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # Linux before 5.3, and sandboxes that forbid it.
        process = None
    try:
        # A descriptor names the process that has the number now; only then is its start time compared.
        if not supervisor.is_alive:
            return
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, END_SECONDS)):
            if process is not None:
                signal.pidfd_send_signal(process, number)
            elif supervisor.is_alive:  # Nothing holds the number, so it is compared at the last moment.
                os.kill(supervisor.pid, number)
            if _ends_within(seconds, supervisor, process):
                return
        raise BackendError(f"its supervisor, process {supervisor.pid}, does not end")
    except ProcessLookupError:
        return
    finally:
        if process is not None:
            os.close(process)


def _ends_within(seconds: float, supervisor: ProcessName, process: int | None) -> bool:
    if process is not None:
        return bool(select.select([process], [], [], seconds)[0])
    deadline = time.monotonic() + seconds
    while supervisor.is_alive:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _log_of(task: str, folder: JobFolder) -> Path:
    """Returns the path of the log of a task. Raises BackendError if there is no such task, or its log is gone."""
    job: dict[str, Any] = folder.job
    logs = job.get("logs", {})
    if task not in logs:
        raise BackendError(f"this job has no task {task!r}; it has {', '.join(logs)}{nearest(task, logs)}")
    path, log_dir = Path(logs[task]), Path(job.get("log_dir", ""))
    if not job.get("has_named_log_dir") or not os.path.isdir(log_dir):
        return path
    holder = log_folder.holder(log_dir, folder.id)
    if holder is None:
        raise BackendError(f"{log_dir} holds the logs of another job now, and those of this one are gone")
    return path if holder == log_dir else holder / path.name


def _lines(path: Path, folder: JobFolder, follow: bool) -> Iterator[str]:
    """Yields the lines of a log; with `follow` until the job has ended."""
    buffered = b""
    while True:
        is_over = folder.status().state.is_final  # Before the look, which then finds every log.
        try:
            file = open(path, "rb", buffering=0)  # noqa: SIM115  closed below
            break
        except FileNotFoundError as error:
            if is_over:
                raise BackendError(f"{path} does not exist any more") from error
            if not follow:
                return  # The task has not started.
            _wait(folder)
        except OSError as error:
            raise BackendError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        while True:
            has_ended = not follow or folder.status().state.is_final  # Before the read, which then gets everything.
            if os.fstat(file.fileno()).st_size < file.tell():  # It was rotated, and cut (copytruncate).
                file.seek(0)
            while data := file.read(_READ_BYTES):
                *finished, buffered = (buffered + data).split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in finished)
            if has_ended:
                break
            _wait(folder)
    if buffered:
        yield buffered.decode("utf-8", "replace")


def _wait(folder: JobFolder) -> None:
    """Waits a moment for more of a job. Raises BackendError if its folder is gone."""
    if not folder.path.is_dir():
        raise BackendError(f"{folder.path} was removed, and nothing else tells when the job ends")
    time.sleep(POLL_SECONDS)
