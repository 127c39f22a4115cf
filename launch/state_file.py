"""`StateFile`: the states of a job and of its tasks in a file (`--state_file`), for `tfdist status` and other programs."""

import json
import time
from pathlib import Path

from tfdist.launch.attached import Watcher
from tfdist.launch.errors import UsageError, print_error
from tfdist.launch.job_status import JobStatus, State

MEASURED_SECONDS = 5.0
"""How often memory and progress are written."""


class StateFile(Watcher):
    """Writes each status to a file, which is replaced as a whole."""

    def __init__(self, path: str, grace_period: float) -> None:
        """Writes the first state.

        Args:
            path: the file.
            grace_period: how long the program may take to end, for those who end the job.

        Raises:
            UsageError: if the file cannot be written.
        """
        self._grace_period = grace_period
        self._path = Path(path).absolute()
        self._written_at = 0.0
        self._has_failed = False
        try:
            self._write(JobStatus(State.STARTING))
        except OSError as error:
            raise UsageError(f"--state_file {path}: {error.strerror}; name a file in an existing folder") from error

    def changed(self, status: JobStatus) -> None:
        """See `Watcher`."""
        try:
            self._write(status)
        except OSError as error:  # A full disk does not end the training.
            if not self._has_failed:
                print_error(f"--state_file: {error}; it may be out of date")
            self._has_failed = True

    def measured(self, status: JobStatus) -> None:
        """See `Watcher`."""
        if time.monotonic() - self._written_at > MEASURED_SECONDS:
            self.changed(status)

    def _write(self, status: JobStatus) -> None:
        self._written_at = time.monotonic()
        part = self._path.with_name(f"{self._path.name}.part")
        values = {**status.as_json(), "grace_period": self._grace_period}
        part.write_text(json.dumps(values, indent=1), encoding="utf-8")
        part.rename(self._path)
