"""`Watcher`: hears about a job while it runs. `StatusWriter`: a watcher that writes each status somewhere."""

import time
from collections.abc import Callable

from tfdist.launch.backends.interface import Plan
from tfdist.launch.jobs.job import JobFiles
from tfdist.launch.jobs.job_status import JobStatus

MEASURED_SECONDS = 5.0
"""How often memory and progress are written."""


class Watcher:
    """Hears about the job while it runs. This one ignores everything."""

    def begins(self, say: Callable[[str], None]) -> None:
        """The job is being prepared. `say` shows a line to the user; it neither blocks nor raises."""

    def started(self, plan: Plan, files: JobFiles) -> None:
        """The tasks are being started, from now on in the background too. May raise OSError: the job then ends."""

    def changed(self, status: JobStatus) -> None:
        """The state of the job or of a task has changed."""

    def measured(self, status: JobStatus) -> None:
        """Only memory or progress has changed."""


class StatusWriter(Watcher):
    """Writes each status, up to the first that is final. What cannot be written is said once, and ends no training."""

    def __init__(self, name: str) -> None:
        """Prepares the writer. `name` is where it writes, for messages."""
        self._name = name
        self._say: Callable[[str], None] = lambda text: None
        self._has_complained = False
        self._has_ended = False
        self._written_at = 0.0

    def write(self, status: JobStatus) -> None:
        """Writes a status. Raises OSError."""
        raise NotImplementedError

    def begins(self, say: Callable[[str], None]) -> None:
        """See `Watcher`."""
        self._say = say

    def measured(self, status: JobStatus) -> None:
        """See `Watcher`."""
        if time.monotonic() - self._written_at > MEASURED_SECONDS:
            self.changed(status)

    def changed(self, status: JobStatus) -> None:
        """See `Watcher`."""
        if self._has_ended:
            return
        self._written_at = time.monotonic()
        try:
            self.write(status)
            self._has_ended = status.state.is_final
        except OSError as error:  # Of a full disk, for example.
            if not self._has_complained:
                self._has_complained = True
                self._say(f"{self._name}: {error.strerror}; the state there may be out of date")
