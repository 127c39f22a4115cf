"""`Settings`: how the launcher runs a job, whatever back end runs its tasks."""

from dataclasses import dataclass

from tfdist.launch.punisher import Punisher


@dataclass(frozen=True)
class Settings:
    """How a job is run here.

    Attributes:
        log_dir: folder for the output of the tasks; None for a new one.
        summary: file for the summary as JSON, or None.
        start_timeout: seconds until every serving task and the chief must listen.
        max_restarts: how often the whole job is started again after a task has failed.
        stall_timeout: seconds without output of any training task after which the job has failed; None for no limit.
        backup_dir: folder of the backup from which a job that is started again continues, or None.
        backup_freq: how often it is written: "epoch", or a number of batches; None for the default.
        punisher: makes tasks fail on purpose; None for the usual.
    """

    log_dir: str | None = None
    summary: str | None = None
    start_timeout: float = 300.0
    max_restarts: int = 0
    stall_timeout: float | None = None
    backup_dir: str | None = None
    backup_freq: str | None = None
    punisher: Punisher | None = None
