"""`run_attached`: runs a plan under the supervision of this process, from the log folder to the summary."""

import dataclasses
import os
import sys
from dataclasses import dataclass

from tfdist import strategies
from tfdist.errors import ClusterError
from tfdist.launch import summary
from tfdist.launch.backends.interface import Attached, Plan
from tfdist.launch.errors import UsageError
from tfdist.launch.job import JobFiles
from tfdist.launch.job_status import JobStatus
from tfdist.launch.log_folder import LogFolder, LogFolderError
from tfdist.launch.output import Terminal, last_lines
from tfdist.launch.supervisor import Outcome, Supervisor
from tfdist.strategies.evaluator.folder import VARIABLE, EvaluationFolder


@dataclass(frozen=True)
class Settings:
    """How a job is run here.

    Attributes:
        log_dir: folder for the output of the tasks; None for a new one.
        summary: file for the summary as JSON, or None.
        start_timeout: seconds until every serving task and the chief must listen.
    """

    log_dir: str | None
    summary: str | None
    start_timeout: float


class Watcher:
    """Hears about the job while it runs. This one ignores everything; `background.py` has one that writes files."""

    def started(self, plan: Plan, files: JobFiles) -> None:
        """The tasks are being started, from now on in the background too."""

    def changed(self, status: JobStatus) -> None:
        """The state of the job or of a task has changed."""


def run_attached(back_end: Attached, plan: Plan, settings: Settings, watcher: Watcher | None = None) -> int:
    """Runs the plan to its end; returns the exit code of the command.

    Raises:
        ClusterError: if the back end cannot start it, for example because a described port is taken.
        UsageError: if a folder cannot be used.
    """
    watcher = watcher or Watcher()
    cluster = plan.job.cluster
    if note := strategies.tpu_note(cluster):
        print(f"tfdist: {note}", file=sys.stderr)
    terminal = Terminal([task.name for task in cluster.tasks], verbose=plan.job.verbose)
    try:
        folder = LogFolder(settings.log_dir, terminal.say)
    except LogFolderError as error:
        raise UsageError(f"--log_dir: {error}") from error
    files = JobFiles(folder.path, folder.report_dir)
    try:
        if cluster.job("evaluator"):
            plan = _with_evaluation_folder(plan, files)
        try:
            runner = back_end.start(plan, files)
        except ClusterError:
            folder.discard()
            raise
        terminal.say(f"{cluster.describe()} on {_places(plan)}; {plan.job.choice.strategy}: {plan.job.choice.rule}")
        terminal.say(f"logs in {files.log_dir}")
        for warning in plan.warnings:
            terminal.say(warning)
        try:
            watcher.started(plan, files)
        except OSError as error:
            runner.close()
            raise UsageError(f"the job cannot be recorded, and was not started: {error}") from error
        outcome = Supervisor(plan.job, files, back_end, runner, terminal, settings.start_timeout, watcher.changed).run()
        code = _report(plan, files, outcome, settings.summary, terminal)
        watcher.changed(dataclasses.replace(outcome.status, exit_code=code))
        return code
    finally:
        folder.close()
        terminal.close()


def _places(plan: Plan) -> str:
    hosts = list(dict.fromkeys(task.host for task in plan.job.cluster.tasks))
    return "this machine" if hosts == ["localhost"] else ", ".join(map(str, hosts[:4])) + (", ..." if hosts[4:] else "")


def _with_evaluation_folder(plan: Plan, files: JobFiles) -> Plan:
    """Names the folder of chief and evaluators to every task, and removes what an earlier chief wrote about its training."""
    job_dir = plan.job.cluster.job_dir
    if job_dir and "://" in job_dir:
        job_dir = None
    folder = EvaluationFolder(plan.job.environment.get(VARIABLE) or os.environ.get(VARIABLE) or job_dir or files.log_dir)
    try:
        folder.forget_training()
    except OSError as error:
        raise UsageError(f"{folder.base}: the chief and the evaluators cannot use this folder: {error}") from error
    environment = {**plan.job.environment, VARIABLE: str(folder.base)}
    return dataclasses.replace(plan, job=dataclasses.replace(plan.job, environment=environment))


def _report(plan: Plan, files: JobFiles, outcome: Outcome, path: str | None, terminal: Terminal) -> int:
    """Writes and shows the summary, or the failure; returns the exit code."""
    values = summary.make(plan.job, files, outcome)
    if path is not None:
        try:
            summary.write(values, path)
        except OSError as error:
            terminal.say(f"--summary: {error}")
    lines = summary.lines(values)
    if outcome.failure is not None:
        lines = [outcome.failure.reason]
        named = [files.log(task) for task in plan.job.cluster.tasks if task.name == outcome.failure.task]
        log = next(iter(named), outcome.failure.log)
        if log is not None and (last := last_lines(log)):
            lines += [f"the last lines of {log}:", *(f"  {line}" for line in last)]
    for line in lines:
        terminal.say(line)
    return outcome.failure.exit_code if outcome.failure else 0
