"""Where the tasks keep the backup from which a job that is started again continues (strategies/checkpoint/job_backup.py)."""

import dataclasses
import os
import shutil
from pathlib import Path

from tfdist.launch.backends.interface import Plan
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.settings import Settings
from tfdist.strategies.checkpoint.environment import FOLDER, FREQUENCY


def check(settings: Settings, job_environment: frozenset[str] = frozenset()) -> None:
    """Raises UsageError for flags that contradict each other or a variable of the tasks, or a folder that cannot be used."""
    folder, frequency = settings.backup_dir, settings.backup_freq
    if folder is not None and (not folder or "://" in folder):
        raise UsageError(f"--backup_dir {folder}: a backup needs a folder on a file system of the chief")
    if frequency is None:
        return
    if frequency != "epoch" and not (frequency.isascii() and frequency.isdecimal() and int(frequency) > 0):
        raise UsageError(f"--backup_freq {frequency}: expected epoch, or a number of batches above 0")
    if folder is None and not settings.max_restarts and FOLDER not in {*os.environ, *job_environment}:
        raise UsageError("--backup_freq: there is no backup; give --backup_dir or --max_restarts too")


def with_backup_folder(plan: Plan, settings: Settings, log_dir: Path) -> tuple[Plan, str | None]:
    """Names the folder of the backup to the tasks.

    It is that of `--backup_dir`. Without one, a job that may be restarted has its backup in `job_dir`, else in its log folder.
    A backup in the log folder belongs to one job: an earlier one is removed.

    Returns:
        The plan, and the folder; None if the job has no backup, or the user has set the variable.
    """
    environment = dict(plan.job.environment)
    if settings.backup_freq is not None:
        environment[FREQUENCY] = settings.backup_freq
    job_dir, folder = plan.job.cluster.job_dir, settings.backup_dir
    if folder is None and not (FOLDER in environment or FOLDER in os.environ) and settings.max_restarts:
        if job_dir and "://" not in job_dir:
            folder = os.path.join(job_dir, "tfdist_backup")
        else:
            folder = str(log_dir / "backup")
            shutil.rmtree(folder, ignore_errors=True)
    if folder is not None:
        folder = environment[FOLDER] = plan.job.path(folder)
    return dataclasses.replace(plan, job=dataclasses.replace(plan.job, environment=environment)), folder
