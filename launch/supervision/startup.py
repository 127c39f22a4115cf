"""`Startup`: waits until the tasks of a job have started, and fails after a timeout."""

from collections.abc import Callable, Mapping

from tfdist.cluster import Cluster, Task
from tfdist.launch.jobs.job import Job
from tfdist.launch.jobs.running_time import RunningTime
from tfdist.launch.supervision.failure import Failure
from tfdist.strategies.runtime.peers import LOG_SECONDS, waiting_for

EARLY_SECONDS = 10.0
"""How long a task that listens may run on after another ended with 0 without ever having listened: it waits for that task."""


class Startup:
    """The tasks that do not listen at their addresses yet.

    A single task, and an evaluator, need not listen.

    Attributes:
        nobody_listened: whether tasks should have listened and none has.
        no_task_served: whether the job has serving tasks and none of them has listened.
    """

    def __init__(self, job: Job, timeout: float, say: Callable[[str], None], clock: Callable[[], float] | None = None) -> None:
        """Begins to wait. `timeout` is for the import of TensorFlow, and again for all tasks to listen, in seconds."""
        tasks = [task for task in job.cluster.training_tasks if task not in job.spare]
        self._missing: list[Task] = tasks if len(tasks) > 1 else []
        self._servers = {task.name for task in job.serving if task not in job.spare}
        self._training = [task.name for task in job.training]
        self.nobody_listened = bool(self._missing)
        self.no_task_served = bool(self._missing and self._servers)
        self._left_early: dict[str, float] = {}  # Task -> when it had ended with 0 without having listened.
        self._timeout = timeout
        self._say = say
        self._clock = clock or RunningTime()
        self._begin = self._clock()
        self._ready_at: float | None = None
        self._said_at = 0.0

    def ready(self, cluster: Cluster) -> None:
        """Starts the time for the tasks: TensorFlow is imported. `cluster` has their addresses."""
        self._ready_at = self._said_at = self._clock()
        self._missing = [cluster.find(task.job, task.index) for task in self._missing]

    def listening(self, name: str) -> None:
        """Notes that the task `name` listens."""
        self.nobody_listened = False
        self.no_task_served = self.no_task_served and name not in self._servers
        self._missing = [task for task in self._missing if task.name != name]

    @property
    def missing(self) -> set[str]:
        """Names of the tasks that have not listened yet."""
        return {task.name for task in self._missing}

    def check(self, exits: Mapping[str, int]) -> Failure | None:
        """Looks which tasks listen; returns a failure when some still do not after the timeout."""
        now = self._clock()
        if self._ready_at is None:
            if now - self._begin <= self._timeout:
                return None
            return Failure(f"gave up: importing TensorFlow took more than {self._timeout:.0f} s (--start_timeout)", 1)
        # A program that ends with 0 without ever listening needed no other task. Another may need it.
        for task in self._missing:
            if exits.get(task.name) == 0 and task.name in self._training:
                self._left_early[task.name] = now
        self._missing = [task for task in self._missing if exits.get(task.name) != 0]
        missing = self.missing
        waiting = [name for name in self._training if name not in exits and name not in missing]
        early = [name for name, since in self._left_early.items() if now - since > EARLY_SECONDS]
        if waiting and early:
            return Failure(
                f"{early[0]} ended with exit code 0 before it took part in the training, and {waiting[0]} goes on without it; "
                "does every task call tfdist.strategy?",
                1,
                early[0],
            )
        waited = now - self._ready_at
        if self._missing and waited > self._timeout:
            return Failure(
                f"gave up after {waited:.0f} s (--start_timeout): {waiting_for(self._missing)} did not start; "
                "does the program call tfdist.strategy on every task?",
                1,
                self._missing[0].name,
            )
        if self._missing and now - self._said_at > LOG_SECONDS:
            self._said_at = now
            self._say(f"waiting {waited:.0f} s for {waiting_for(self._missing)}")
        return None
