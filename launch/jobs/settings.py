"""`Settings`: how the launcher runs a job, whatever back end runs its tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdist.launch.jobs.fault_injection import FaultInjector
from tfdist.launch.jobs.restarts import MAX_RESTARTS, WINDOW_SECONDS

GRACE_SECONDS = 5.0

END_SECONDS = 15.0
"""How long a launcher may take to end its job after SIGTERM, besides the grace period of the program, before it is killed. A
host that gives no answer has `CLOSE_SECONDS` of it (backends/agents/remote_tasks.py)."""


@dataclass(frozen=True)
class Settings:
    """How a job is run here.

    Attributes:
        log_dir: folder for the output of the tasks; None for a new one.
        summary: file for the summary as JSON, or None.
        start_timeout: seconds until every serving task and the chief must listen.
        max_restarts: how often the whole job is started again after a task has failed, until it has trained for
            `restart_window`.
        stall_timeout: seconds without output of any training task after which the job has failed; None for no limit.
        step_timeout: seconds without a step of `fit` after which the job has failed; None for no limit.
        task_restarts: how often a task of a job (`worker`, `evaluator`) is restarted, where that is not `MAX_RESTARTS`.
        restart_window: seconds after which a task that runs, and a job that trains, has all its restarts again.
        grace_period: seconds that training tasks have after a signal, to save and end.
        view: `auto`, `live` or `lines`: what the terminal shows.
        tensorboard: the folder that TensorBoard shows during the job, or None.
        backup_dir: folder of the backup from which a job that is started again continues, or None.
        backup_freq: how often it is written: "epoch", or a number of batches; None for the default.
        fault_injector: makes tasks fail on purpose; None for the usual.
    """

    log_dir: str | None = None
    summary: str | None = None
    start_timeout: float = 300.0
    max_restarts: int = 0
    stall_timeout: float | None = None
    step_timeout: float | None = None
    task_restarts: Mapping[str, int] = field(default_factory=dict)
    restart_window: float = WINDOW_SECONDS
    grace_period: float = GRACE_SECONDS
    view: str = "auto"
    tensorboard: str | None = None
    backup_dir: str | None = None
    backup_freq: str | None = None
    fault_injector: FaultInjector | None = None

    def restarts_of(self, job: str) -> int:
        """Returns how often a task of `job` is restarted."""
        return self.task_restarts.get(job, MAX_RESTARTS)
