"""`run_attached`: runs a plan under the supervision of this process, from the log folder to the summary."""

import dataclasses
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tfdist import strategies
from tfdist.errors import ClusterError
from tfdist.launch.backends.interface import Attached, BackendError, Plan, TaskRunner
from tfdist.launch.backends.local.guard import FOR_THE_PROGRAM
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.ending_signals import ending_signals
from tfdist.launch.jobs.job import Job, JobFiles
from tfdist.launch.jobs.job_status import JobStatus, State
from tfdist.launch.jobs.settings import Settings
from tfdist.launch.supervision import backups, scaling, summary
from tfdist.launch.supervision.failure import Failure, ended_by
from tfdist.launch.supervision.job_restarts import JobRestarts
from tfdist.launch.supervision.log_folder import LogFolder, LogFolderError
from tfdist.launch.supervision.supervisor import Outcome, Supervisor
from tfdist.launch.supervision.tensorboard import TensorBoard
from tfdist.launch.supervision.watcher import Watcher
from tfdist.launch.terminal.live_view import LiveView
from tfdist.launch.terminal.output import Terminal, last_lines
from tfdist.messages import without_secrets
from tfdist.strategies.evaluator.folder import LAUNCH_VARIABLE, VARIABLE, EvaluationFolder

LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def run_attached(back_end: Attached, plan: Plan, settings: Settings, watcher: Watcher | None = None) -> int:
    """Runs the plan to its end; returns the exit code of the command.

    Raises:
        ClusterError: if the back end cannot start it, for example because a described port is taken.
        UsageError: if a folder cannot be used.
        SystemExit: if a signal ends this process before the tasks run. The watcher hears of this and of every error.
    """
    watcher = watcher or Watcher()
    cluster = plan.job.cluster
    if note := strategies.tpu_note(cluster):
        print(f"tfdist: {note}", file=sys.stderr)
    # Whoever chooses the level wants to see what it shows.
    verbose = plan.job.verbose or LEVEL in {**os.environ, **plan.job.environment}
    try:
        terminal = Terminal([task.name for task in cluster.tasks], verbose=verbose)
    except RuntimeError as error:  # No threads are left (ulimit -u, the limit of a container).
        raise BackendError(f"the tasks cannot be started: {error}") from error
    watcher.begins(terminal.say)
    try:
        with _signals_raise():
            return AttachedRun(back_end, plan, settings, watcher, terminal).run()
    except BaseException as error:
        watcher.changed(_given_up(error))
        raise
    finally:
        terminal.close()


class AttachedRun:
    """A job that this process supervises: its attempts, of which each but the first follows a restart of all tasks."""

    def __init__(self, back_end: Attached, plan: Plan, settings: Settings, watcher: Watcher, terminal: Terminal) -> None:
        """Makes the log folder. Raises UsageError if it cannot be used."""
        self._back_end, self._plan, self._settings = back_end, plan, settings
        self._watcher, self._terminal, self._say = watcher, terminal, terminal.say
        self._view = LiveView(plan.job, terminal, settings.view)
        try:
            self._folder = LogFolder(settings.log_dir, terminal.say)
        except LogFolderError as error:
            raise UsageError(f"--log_dir: {error}") from error
        self._files = JobFiles(self._folder.path, self._folder.report_dir)
        self._board: TensorBoard | None = None

    def run(self) -> int:
        """Runs the job to its end; returns the exit code of the command."""
        try:
            return self._run()
        finally:
            self._back_end.release()
            if self._board is not None:
                self._board.close()
            scaling.forget(self._folder.path)
            self._folder.close()

    def _run(self) -> int:
        settings, log_dir = self._settings, self._files.log_dir
        if self._plan.job.cluster.job("evaluator"):
            self._plan = _with_evaluation_folder(self._plan, self._files)
        self._plan, backup_dir = backups.with_backup_folder(self._plan, settings, log_dir)
        if settings.tensorboard is not None:  # First: the back end ends what this process starts later.
            self._board = TensorBoard(settings.tensorboard, log_dir, self._say)
        runner = self._started()
        try:
            self._watcher.started(self._plan, self._files)
        except OSError as error:
            runner.close()
            raise UsageError(f"the job cannot be recorded, and was not started: {error}") from error
        self._announce(backup_dir)
        restarts = JobRestarts(settings.max_restarts, settings.restart_window, settings.start_timeout)
        outcome, earlier_seconds = self._attempts(runner, restarts)
        if settings.fault_injector is not None:
            settings.fault_injector.say_pending(self._say)
        code = self._report(outcome, summary.make(self._plan.job, self._files, outcome, restarts.count, earlier_seconds))
        self._watcher.changed(dataclasses.replace(outcome.status, exit_code=code))
        return code

    def _attempts(self, runner: TaskRunner, restarts: JobRestarts) -> tuple[Outcome, float]:
        """Runs the job until it is not started again; returns the outcome of the last attempt, and the seconds before that."""
        job, begin = self._plan.job, time.monotonic()
        while True:
            self._view.show()
            earlier_seconds, again = time.monotonic() - begin, restarts.count > 0
            outcome = Supervisor(
                job, self._files, self._back_end, runner, self._terminal, self._settings, self._publish, is_restart=again
            ).run()
            self._view.hide()
            if outcome.failure is None or (delay := restarts.after(outcome)) is None:
                return outcome, earlier_seconds
            when = f" in {delay:.0f} s" if delay else ""
            which = f"restart {restarts.used} of {self._settings.max_restarts}"
            try:
                self._say(f"{outcome.failure.reason}; all tasks are started again{when} ({which})")
                _wait(delay)
                self._files = JobFiles(self._folder.path, self._folder.new_report_dir(), is_restart=True)
                runner = self._started()
            except (ClusterError, BackendError, SystemExit) as error:
                return _not_started_again(outcome, error), earlier_seconds

    def _started(self) -> TaskRunner:
        """Starts the plan."""
        try:
            return self._back_end.start(self._plan, self._files)
        except ClusterError:
            self._folder.discard()
            raise
        except OSError as error:  # Too many open files or processes (ulimit -n, ulimit -u).
            raise BackendError(f"the tasks cannot be started: {error}") from error

    def _announce(self, backup_dir: str | None) -> None:
        """Says what has been started, and where its files are."""
        job, choice = self._plan.job, self._plan.job.choice
        self._say(f"{job.cluster.describe()} on {_places(job)}; {choice.strategy}: {choice.rule}")
        self._say(f"logs in {self._files.log_dir}")
        if backup_dir is not None:
            self._say(f"backup of the training in {backup_dir}")
        for warning in self._plan.warnings:
            self._say(warning)
        if not self._back_end.holds_ports:
            self._say("this back end reserves no ports: the job fails if another program takes one before its task listens")

    def _publish(self, status: JobStatus, is_measured: bool) -> None:
        """Shows and passes on a status that is not the last."""
        self._folder.renew_report_dir()
        self._view.update(status)
        (self._watcher.measured if is_measured else self._watcher.changed)(status)
        if self._board is not None:
            self._board.look()
            self._board.note(status)

    def _report(self, outcome: Outcome, values: dict[str, Any]) -> int:
        """Writes and shows the summary, or the failure; returns the exit code."""
        if self._settings.summary is not None:
            try:
                summary.write(values, self._settings.summary)
            except OSError as error:
                self._say(f"--summary: {error}")
        lines = summary.lines(values)
        if outcome.failure is not None:
            lines = [outcome.failure.reason]
            named = [self._files.log(task) for task in self._plan.job.cluster.tasks if task.name == outcome.failure.task]
            log = next(iter(named), outcome.failure.log)
            if log is not None and (last := last_lines(log)):
                lines += [f"the last lines of {log}:", *(f"  {line}" for line in last)]
        for line in lines:
            self._say(line)
        return outcome.failure.exit_code if outcome.failure else 0


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Within the block, a signal that ends the job raises SystemExit, so that what was prepared is undone.

    A signal for the program does nothing, as before a restart of the job: no task runs that it could reach. While tasks run,
    the supervisor receives the signals instead.
    """

    def end(number: int, frame: object) -> None:
        raise SystemExit(ended_by(number).exit_code)

    wanted = [number for number in ending_signals() if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    previous = {number: signal.signal(number, end) for number in wanted}
    for number in FOR_THE_PROGRAM:  # With a handler, which what is started here does not inherit.
        if signal.getsignal(number) == signal.SIG_DFL:
            previous[number] = signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _given_up(error: BaseException) -> JobStatus:
    """Returns the status of a job that ended with an error of its launcher, or with a signal before its tasks ran."""
    if isinstance(error, SystemExit | KeyboardInterrupt):
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
        if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128:
            number = signal.Signals(error.code - 128)
        ending = ended_by(number)
        return JobStatus(State.CANCELLED, reason=ending.reason, exit_code=ending.exit_code)
    text = without_secrets(" ".join(str(error).split())) or type(error).__name__
    is_expected = isinstance(error, ClusterError | UsageError | BackendError)
    return JobStatus(State.FAILED, reason=text, exit_code=2 if is_expected else 1)


def _not_started_again(outcome: Outcome, error: ClusterError | BackendError | SystemExit) -> Outcome:
    """Returns the outcome of a job that cannot be started again, or that a signal has ended before (see `_signals_raise`)."""
    if not isinstance(error, SystemExit):  # Another program may have taken a port meanwhile.
        state, failure = State.FAILED, Failure(str(error), 2)
    elif isinstance(error.code, int) and error.code > 128:
        state, failure = State.CANCELLED, ended_by(error.code - 128)
    else:
        raise error
    return dataclasses.replace(
        outcome, failure=failure, status=dataclasses.replace(outcome.status, state=state, reason=failure.reason)
    )


def _wait(seconds: float) -> None:
    """Waits for some seconds. As `_signals_raise`, raises SystemExit if a signal that ends the launcher comes in them."""
    numbers = ending_signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        received = signal.sigtimedwait(numbers, seconds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if received is not None:
        raise SystemExit(ended_by(received.si_signo).exit_code)


def _places(job: Job) -> str:
    hosts = list(dict.fromkeys(task.host for task in job.cluster.tasks))
    return "this machine" if hosts == ["localhost"] else ", ".join(map(str, hosts[:4])) + (", ..." if hosts[4:] else "")


def _with_evaluation_folder(plan: Plan, files: JobFiles) -> Plan:
    """Names the folder of chief and evaluators to every task, and removes what an earlier chief wrote about its training."""
    job_dir = plan.job.cluster.job_dir
    if job_dir and "://" in job_dir:
        job_dir = None
    base = plan.job.environment.get(VARIABLE) or os.environ.get(VARIABLE) or job_dir
    path = plan.job.path(base) if base else str(files.log_dir.absolute())
    folder = EvaluationFolder(path)
    if folder.is_used():
        raise UsageError(f"{folder.base}: another job that runs now evaluates its checkpoints there; give each its own folder")
    try:
        folder.forget_training()
    except OSError as error:
        raise UsageError(f"{folder.base}: the chief and the evaluators cannot use this folder: {error}") from error
    environment = {**plan.job.environment, VARIABLE: path, LAUNCH_VARIABLE: uuid.uuid4().hex}
    return dataclasses.replace(plan, job=dataclasses.replace(plan.job, environment=environment))
