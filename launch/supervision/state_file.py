"""`StateFile`: the states of a job and of its tasks in a file (`--state_file`), for `tfdist status` and other programs."""

from pathlib import Path

from tfdist.json_values import replace_file
from tfdist.launch import standard_streams
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.job_status import JobStatus, State
from tfdist.launch.supervision.watcher import StatusWriter


class StateFile(StatusWriter):
    """Writes each status to a file, which is replaced as a whole."""

    def __init__(self, path: str, grace_period: float) -> None:
        """Writes the first state, with the time that the program may take to end, for those who end the job.

        Raises:
            UsageError: if the file cannot be written, or is a device, a pipe or a folder.
        """
        super().__init__(f"--state_file {path}")
        self._grace_period = grace_period
        self._path = Path(path).resolve()  # A link to it stays.
        if (self._path.exists() and not self._path.is_file()) or standard_streams.is_one(path):
            raise UsageError(f"--state_file {path}: it is replaced by a new file at each change; name a regular file")
        try:
            self.write(JobStatus(State.STARTING))
        except OSError as error:
            raise UsageError(f"--state_file {path}: {error.strerror}; name a file in an existing folder") from error

    def write(self, status: JobStatus) -> None:
        """See `StatusWriter`."""
        replace_file(self._path, {**status.as_json(), "grace_period": self._grace_period}, indent=1)
