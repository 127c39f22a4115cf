"""`TrainingWatch`: whether the training of a job gets on, by the steps of `fit` and by what its tasks print."""

import time
from collections.abc import Callable
from pathlib import Path

from tfdist.launch.jobs import progress as progress_file
from tfdist.launch.jobs.job import Job
from tfdist.launch.jobs.progress import Progress
from tfdist.launch.jobs.settings import Settings
from tfdist.launch.supervision.failure import Failure
from tfdist.launch.supervision.running_tasks import RunningTasks
from tfdist.launch.supervision.startup import Startup
from tfdist.launch.supervision.watchdog import Watchdog

PROGRESS_SECONDS = 0.5
"""How often the progress is read."""


class TrainingWatch:
    """The training of one job.

    Attributes:
        reached: the farthest epoch of a `fit`, from 1, and the steps of it that were done; zeros without a step.
    """

    def __init__(
        self,
        job: Job,
        report: Path,
        settings: Settings,
        tasks: RunningTasks,
        startup: Startup,
        when_advanced: Callable[[], None],
    ) -> None:
        """Begins to watch. `report` is the file of the task that reports; `when_advanced` is called when a step is done."""
        self.reached = (0, 0)
        self._reporter, self._report, self._settings = job.reporter.name, report, settings
        self._tasks, self._startup, self._when_advanced = tasks, startup, when_advanced
        self._output, self._steps = Watchdog(settings.stall_timeout), Watchdog(settings.step_timeout)
        self._progress: Progress | None = None  # Without, also after a cleanup of /dev/shm, nobody knows if steps are made.
        self._read_at = 0.0
        progress_file.forget(report)

    def read(self) -> Progress | None:
        """Reads from time to time how far the training is; returns it if it has changed."""
        now = time.monotonic()
        if now - self._read_at < PROGRESS_SECONDS:
            return None
        self._read_at = now
        before, self._progress = self._progress, progress_file.read(self._report)
        progress = self._progress
        if progress is None or progress == before:
            return None
        if before is None or progress.done != before.done:
            self._steps.heard()
            self._when_advanced()
        if progress.batches or progress.step:
            self.reached = max(self.reached, (progress.epoch, progress.step))
        return progress

    def failure(self) -> Failure | None:
        """Returns a failure if no training task has printed anything, or `fit` has made no step, for too long."""
        is_blocked = self._tasks.waits_for_reader
        if self._tasks.have_printed() or is_blocked or self._startup.missing or not self._tasks.any_started:
            self._output.heard()
        if self._output.tick():
            return self._given_up(
                f"no training task has printed anything for {self._settings.stall_timeout:.0f} s (--stall_timeout)"
            )
        progress = self._progress
        if progress is None or progress.phase == "idle" or is_blocked:
            self._steps.heard()
        if progress is None or not self._steps.tick():
            return None
        return self._given_up(
            f"the training has made no step for {self._settings.step_timeout:.0f} s (--step_timeout), at epoch "
            f"{progress.epoch}/{progress.epochs}, step {progress.step_text}"
        )

    def trained_seconds(self, seconds: float) -> float:
        """Returns how long a job that ended after `seconds` has trained, see `Outcome`."""
        if self._tasks.have_printed():  # Just before it ended.
            self._output.heard()
        if self._startup.missing or (self._progress is not None and self.reached == (0, 0)):
            return 0.0  # It has prepared for longer, as by reading data.
        return seconds - (self._output if self._progress is None else self._steps).silent

    def _given_up(self, reason: str) -> Failure:
        return Failure(f"{reason}; the logs of all tasks end with their Python stacks", 1, self._reporter, may_pass=True)
