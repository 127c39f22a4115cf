"""`BindingNow`: what binds a job while it trains, from what its tasks report."""

from collections.abc import Callable, Sequence
from typing import Any

from tfdist.launch.jobs.job import Job
from tfdist.launch.jobs.job_status import State, TaskStatus
from tfdist.launch.jobs.progress import Progress
from tfdist.planner.binding import explain
from tfdist.planner.measurement import Variable
from tfdist.planner.running import Running

MOST_SECONDS_WITHOUT = 10.0
"""If no task has reported by then, none will."""


class BindingNow:
    """Explains one job."""

    def __init__(self, job: Job, clock: Callable[[], float]) -> None:
        choice = job.choice.strategy
        self._strategy = choice
        self._is_together = choice == "parameter_server" and len(job.cluster.worker_groups) == 1
        self._training = {task.name for task in job.cluster.training_tasks}
        self._clock = clock
        self._trains_since: float | None = None

    def of(self, tasks: Sequence[TaskStatus], progress: Progress | None) -> dict[str, Any] | None:
        """Returns what binds; None while the job does not train, or until all that is known is from its training."""
        if progress is None or progress.phase == "idle" or not progress.batches:
            self._trains_since = None
            return None
        now = self._clock()
        self._trains_since = now if self._trains_since is None else self._trains_since
        here = [task for task in tasks if task.name in self._training and task.state == State.RUNNING]
        uses = {task.name: task.use for task in here if task.use is not None}
        longest = max((use.seconds for use in uses.values()), default=0.0)
        if now - self._trains_since < max(longest, MOST_SECONDS_WITHOUT * (not uses)):
            return None
        variables = [Variable("", (rows,), size) for rows, size in progress.parameters]
        names, hosts = [task.name for task in here], {task.name: task.where for task in here}
        return explain(Running(self._strategy, uses, names, hosts, variables, self._is_together)).as_json()
