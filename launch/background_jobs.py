"""`BackgroundJobs`: status, logs and end of the jobs that a launcher supervises in the background, asked from any process."""

import os
import re
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tfdist.errors import nearest
from tfdist.launch.backends.interface import BackendError, LogLine
from tfdist.launch.job_folder import JobFolder
from tfdist.launch.job_status import JobStatus
from tfdist.launch.settings import GRACE_SECONDS

END_SECONDS = 10.0
"""How long the supervisor may take to end a job, besides the grace period of its program."""

POLL_SECONDS = 0.2
_READ_BYTES = 1 << 20
_TASK_LINE = re.compile(r"([a-z]+:\d+) +\| (.*)", re.ASCII | re.DOTALL)


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
            logs = folder.job.get("logs", {})
            if task not in logs:
                raise BackendError(f"this job has no task {task!r}; it has {', '.join(logs)}{nearest(task, logs)}")
            path = Path(logs[task])
        for line in _lines(path, folder, follow):
            match = _TASK_LINE.fullmatch(line) if task is None else None
            yield LogLine(match[1], match[2]) if match else LogLine(task or "", line)

    def cancel(self, job_id: str) -> None:
        """See `Detached`. Returns when the supervisor has ended the job."""
        folder = JobFolder.open(self._backend, job_id)
        if folder.status().state.is_final:
            return
        supervisor = folder.supervisor
        if supervisor is None or not supervisor.is_here:
            raise BackendError(f"the supervisor of this job runs elsewhere: {folder.status().reason or 'it has no name yet'}")
        try:
            process = os.pidfd_open(supervisor.pid)
        except ProcessLookupError:
            return
        try:
            # The descriptor names the process that has the number now; only then is its start time compared.
            if not supervisor.is_alive:
                return
            patience = END_SECONDS + float(folder.job.get("grace_period", GRACE_SECONDS))
            for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, END_SECONDS)):
                signal.pidfd_send_signal(process, number)
                if select.select([process], [], [], seconds)[0]:
                    return
            raise BackendError(f"its supervisor, process {supervisor.pid}, does not end")
        except ProcessLookupError:
            return
        finally:
            os.close(process)


def _lines(path: Path, folder: JobFolder, follow: bool) -> Iterator[str]:
    """Yields the lines of a log; with `follow` until the job has ended."""
    buffered = b""
    while True:
        is_over = folder.status().state.is_final  # Before the look, which then finds every log.
        try:
            file = open(path, "rb")  # noqa: SIM115  closed below
            break
        except FileNotFoundError as error:
            if is_over:
                raise BackendError(f"{path} does not exist any more") from error
            if not follow:
                return  # The task has not started.
            time.sleep(POLL_SECONDS)
    with file:
        while True:
            has_ended = not follow or folder.status().state.is_final  # Before the read, which then gets everything.
            while data := file.read(_READ_BYTES):
                *finished, buffered = (buffered + data).split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in finished)
            if has_ended:
                break
            time.sleep(POLL_SECONDS)
    if buffered:
        yield buffered.decode("utf-8", "replace")
