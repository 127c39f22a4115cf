"""Runs a job: starts its tasks through a back end, watches them, and ends them all.

A job ends when its program has finished, when a required task fails, or when the user ends it.
"""

import shutil
import signal
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.launch.backends.interface import Attached, TaskRunner
from tfdist.launch.jobs.ending_signals import ending_signals
from tfdist.launch.jobs.events import Event, Exited, Listening, Lost, Ready, Stopped
from tfdist.launch.jobs.job import Job, JobFiles
from tfdist.launch.jobs.job_status import JobStatus, State
from tfdist.launch.jobs.progress import has_ended
from tfdist.launch.jobs.restarts import STOPPED_SECONDS, Restarts, may_run_longer
from tfdist.launch.jobs.running_time import RunningTime
from tfdist.launch.jobs.settings import Settings
from tfdist.launch.supervision.failure import Failure, FirstFailure, ended_by, is_by_user, left_fit, unless_signaled
from tfdist.launch.supervision.running_tasks import RunningTasks
from tfdist.launch.supervision.scaling import Scaling
from tfdist.launch.supervision.startup import Startup
from tfdist.launch.supervision.status_board import StatusBoard
from tfdist.launch.supervision.training_watch import TrainingWatch
from tfdist.launch.supervision.watchdog import Watchdog
from tfdist.launch.terminal.output import Terminal

TICK_SECONDS = 0.1

END_SECONDS = 5.0
"""How long tasks may take to end by themselves after a success, and after a signal when another has failed."""

SERVER_GRACE_SECONDS = 1.0
"""How long servers, which have nothing to save, may take to end after a signal. With the default of `Settings.grace_period` and
the times of `fork_server.py`, all tasks end within 10 seconds."""

STACKS_SECONDS = 1.0
"""How long tasks may take to print their Python stacks."""

PY_SPY_SECONDS = 4.0
"""The same where py-spy is installed, which prints those of the tasks that do not (backends/local/stacks.py)."""

REST_SECONDS = 1.0
"""How long the others may take to end after the task that saves."""

EVALUATORS_GRACE_SECONDS = 600.0
"""How long evaluators may take, after the training, for the remaining checkpoints."""

NO_TASK_SERVED = (
    "the program ended without calling tfdist.strategy(): every task ran the whole program, and no task served; make the model "
    "in `with tfdist.strategy().scope():`"
)
NO_TASK_TRAINED = (
    "the program ended without calling tfdist.strategy(): each of the {} tasks ran the whole program on its own; make the "
    "model in `with tfdist.strategy().scope():`"
)


@dataclass
class Outcome:
    """How a job ended.

    Attributes:
        failure: why the job failed; None after success.
        status: the final states of job and tasks.
        cluster: the cluster, with the addresses of its tasks.
        seconds: duration of the job, without its end.
        exits: exit code by task name, minus the number of the signal that ended the task, for all tasks.
        restarts: number of restarts by task name, for the tasks that may be restarted.
        report: steps and metrics, as the reporter has written them (strategies/runtime/run_summary.py).
        trained_seconds: until the last step of `fit`, or the last output of a program without `fit`; 0 if a `fit` made no step.
        reached: the farthest epoch of a `fit`, from 1, and the steps of it that were done; zeros without a step.
    """

    failure: Failure | None
    status: JobStatus
    cluster: Cluster
    seconds: float
    exits: dict[str, int] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    trained_seconds: float = 0.0
    reached: tuple[int, int] = (0, 0)


class Supervisor:
    """Runs one job."""

    def __init__(
        self,
        job: Job,
        files: JobFiles,
        back_end: Attached,
        runner: TaskRunner,
        terminal: Terminal,
        settings: Settings,
        publish: Callable[[JobStatus, bool], None],
        *,
        is_restart: bool = False,
    ) -> None:
        """Prepares the job; `run` runs it. `publish` gets each new status, except the last, which is that of the outcome. If
        the whole job is started again (`is_restart`), log files are continued."""
        self._board = StatusBoard(job, publish)
        self._job = job
        self._files = files
        self._runner = runner
        self._can_restart = back_end.can_restart
        self._keep = back_end.keep if settings.max_restarts else None
        self._say = terminal.say
        self._tasks = RunningTasks(job, files, runner, terminal, is_restart)
        self._training = {task.name for task in job.training}
        self._servers = {task.name for task in job.serving}
        self._startup = Startup(job, settings.start_timeout, terminal.say)
        self._settings = settings
        self._stopped_watchdog = Watchdog(STOPPED_SECONDS)
        self._fault_injector = settings.fault_injector
        self._first_failure = FirstFailure(job, self._tasks.exits, has_ended=lambda: has_ended(files.report))
        self._evaluators = self._make_restarts(job.cluster.job("evaluator"))
        self._workers = self._make_restarts(
            () if self._restarts_exactly() else job.replaceable,
            meanwhile=job.loss_of_a_worker,
            can_continue=job.has_worker_group,
            awaited=job.awaited,
        )
        self._training_watch = TrainingWatch(
            job, files.report, settings, self._tasks, self._startup, when_advanced=self._workers.advanced
        )
        self._scaling = Scaling(
            job, files.log_dir, self._workers, self._tasks, self._board, terminal.say, is_restart=is_restart
        )
        self._signals: list[int] = []
        self._to_pass_on: list[int] = []

    def run(self) -> Outcome:
        """Runs the job to its end; when it returns, all processes of the job have ended."""
        begin, failure = time.monotonic(), None
        restore_signals = self._receive_signals()
        try:
            failure = self._loop(self._verdict, limit=None)
            seconds = time.monotonic() - begin
            trained = self._training_watch.trained_seconds(seconds)
            if self._signals and is_by_user(failure):
                self._board.cancelled()
            self._end_tasks(failure)
            failure = unless_signaled(failure, self._signals)
            report = self._files.read_report()  # The back end removes its folder.
        finally:
            self._tasks.close(self._keep if failure is not None and failure.may_pass else None)
            restore_signals()
        failure = unless_signaled(failure, self._signals)  # A signal may come while what is left of the tasks ends, too.
        is_cancelled = self._signals and is_by_user(failure)
        state = State.SUCCEEDED if failure is None else State.CANCELLED if is_cancelled else State.FAILED
        status = self._board.ended(state, failure.reason if failure else "", self._tasks.exits)
        restarts = self._evaluators.counts | self._workers.counts
        reached = self._training_watch.reached
        return Outcome(failure, status, self._tasks.cluster, seconds, self._tasks.exits, restarts, report, trained, reached)

    def _loop(self, verdict: Callable[[], "Failure | bool"], limit: float | None) -> Failure | None:
        """Handles events until `verdict` returns a Failure, which it returns, or True, or until `limit` seconds have passed."""
        clock = RunningTime()  # Tasks have the whole time, even if the launcher is stopped meanwhile.
        begin = clock()
        while limit is None or clock() - begin < limit:
            if (event := self._tasks.poll(TICK_SECONDS)) is not None:
                self._handle(event)
            self._evaluators.tick()
            self._workers.tick()
            self._scaling.tick()
            self._pass_signals_on()
            if (progress := self._training_watch.read()) is not None:
                self._board.progressed(progress)
            self._board.tick()
            self._kill_stopped()
            if self._fault_injector is not None:
                self._fault_injector.tick(self._files.report, self._tasks.running, self._tasks.signal, self._say)
            answer = verdict()
            if isinstance(answer, Failure):
                return answer
            if answer:
                return None
        return None

    def _verdict(self) -> "Failure | bool":
        """Returns whether the job is done (True), failed (why), or continues (False)."""
        if self._signals:
            return ended_by(self._signals[0])
        if all(self._tasks.exits.get(name) == 0 for name in self._training):
            if self._startup.no_task_served:
                return Failure(NO_TASK_SERVED, 1, self._job.reporter.name)
            if self._startup.nobody_listened and not self._files.read_report():
                self._say(NO_TASK_TRAINED.format(len(self._training)))
            return left_fit(self._job.reporter.name, self._files.report) or True
        return self._first_failure.get() or self._late_start() or self._standstill() or False

    def _late_start(self) -> Failure | None:
        if (failure := self._startup.check(self._tasks.exits)) is not None:
            self._show_stacks(self._startup.missing)
        return failure

    def _standstill(self) -> Failure | None:
        """Returns a failure if the training does not get on, after the Python stacks of its tasks went to the logs."""
        if (failure := self._training_watch.failure()) is not None:
            self._show_stacks(self._training | self._servers)
        return failure

    def _kill_stopped(self) -> None:
        """Kills the tasks that are stopped and for which the others have not waited."""
        names = self._first_failure.last_stopped()
        if not names:
            self._stopped_watchdog.heard()
        if self._stopped_watchdog.tick():
            self._say(f"the others have ended, and {', '.join(names)} was stopped for {STOPPED_SECONDS:.0f} s: it is killed")
            self._tasks.signal(names, signal.SIGKILL)
            self._stopped_watchdog.heard()

    def _show_stacks(self, names: Set[str]) -> None:
        """Makes these tasks print their Python stacks, and waits a moment for it."""
        self._tasks.signal(names, signal.SIGQUIT)  # See backends/local/run_program.py.
        seconds = STACKS_SECONDS if shutil.which("py-spy") is None else PY_SPY_SECONDS
        self._loop(lambda: self._tasks.running.isdisjoint(names), seconds)

    def _pass_signals_on(self) -> None:
        while self._to_pass_on:
            number = self._to_pass_on.pop(0)
            self._say(f"{signal.Signals(number).name} is passed on to {', '.join(sorted(self._training))}")
            self._tasks.signal(self._training, number)

    def _handle(self, event: Event) -> None:
        self._board.add(event)
        if isinstance(event, Ready):
            for warning in event.warnings:
                self._say(warning)
            self._startup.ready(event.cluster)
            for task in event.cluster.tasks:
                if task.name not in self._scaling.idle:
                    self._tasks.start(task)
        elif isinstance(event, Listening):
            self._startup.listening(event.task)
        elif isinstance(event, Exited):
            self._handle_exit(event)
        elif isinstance(event, Stopped):
            if event.message:
                self._say(event.message)
            self._evaluators.stopped(event)
            self._workers.stopped(event)
            if event.task not in self._evaluators.names | self._workers.names:
                self._first_failure.stopped(event)
        elif isinstance(event, Lost):
            self._evaluators.stop()
            self._workers.stop()
            for task in self._job.cluster.tasks:
                self._tasks.exits.setdefault(task.name, -signal.SIGKILL)
            failure = Failure(event.reason, 1, log=self._runner.log, may_pass=True, is_host_away=event.is_host_away)
            self._first_failure.report(Failure(event.reason, 2) if event.refused else failure)

    def _handle_exit(self, event: Exited) -> None:
        """Plans the restart of a task that may be replaced; judges the exit of another."""
        if event.task in self._evaluators.names:
            self._evaluators.exited(event)
            return
        if event.task in self._scaling.idle:
            self._scaling.exited(event.task)
            return
        # One that never listened may do so again.
        if event.task in self._workers.names and may_run_longer(event) and event.task not in self._startup.missing:
            self._workers.exited(event)
            if self._workers.can_continue:
                return
        given_up = self._workers.names - set(self._workers.running)
        self._first_failure.exited(event, self._servers - given_up, self._startup.no_task_served)

    def _restarts_exactly(self) -> bool:
        """Returns whether a killed worker restarts the whole job, because that alone is exact: every step is made once."""
        job = self._job
        is_synchronous = job.choice.strategy == "parameter_server" and len(job.cluster.worker_groups) == 1
        return is_synchronous and self._settings.max_restarts > 0

    def _make_restarts(self, tasks: Sequence[Task], **messages: Any) -> Restarts:
        limits = {task.job: self._settings.restarts_of(task.job) if self._can_restart else 0 for task in tasks}
        window = self._settings.restart_window
        return Restarts(tasks, start=self._restart, kill=self._kill, say=self._say, limits=limits, window=window, **messages)

    def _restart(self, task: Task) -> None:
        self._board.restarted(task.name)
        self._tasks.start(task)

    def _kill(self, task: Task) -> None:
        self._tasks.signal([task.name], signal.SIGKILL)

    def _end_tasks(self, failure: Failure | None) -> None:
        """After success, lets servers end by themselves. Otherwise signals every task to end, and kills those that do not."""
        self._workers.stop()
        self._scaling.stop()
        if failure is None:
            self._await_exits(self._training | self._servers, END_SECONDS)
            self._await_evaluators()
        self._evaluators.stop()
        # Training tasks end first: their connections to the servers then close in order, without pages of errors. They receive
        # SIGINT after Ctrl-C, which Python turns into KeyboardInterrupt: the program may want to save.
        number = signal.SIGINT if self._signals[:1] == [signal.SIGINT] else signal.SIGTERM
        begin = time.monotonic()
        # After a failure the others have nothing to save, and may wait for the one that failed.
        grace = self._settings.grace_period if self._signals else min(END_SECONDS, self._settings.grace_period)
        if self._signals and number == signal.SIGTERM:
            # It may save a checkpoint, which takes its next step, and that may take the others.
            self._tasks.signal([self._job.reporter.name], number)
            self._await_exits({self._job.reporter.name}, grace)
        self._tasks.signal(self._training, number)
        self._tasks.signal(self._evaluators.names, signal.SIGTERM)
        self._await_exits(self._training, max(REST_SECONDS, grace - (time.monotonic() - begin)))
        self._tasks.signal(self._servers, signal.SIGTERM)
        self._await_exits(self._servers, SERVER_GRACE_SECONDS)
        everything = self._training | self._servers | self._evaluators.names
        self._tasks.signal(everything, signal.SIGKILL)
        self._await_exits(everything, 1.0)

    def _await_evaluators(self) -> None:
        """After success, waits until the evaluators have evaluated the remaining checkpoints."""
        if not (names := ", ".join(self._evaluators.running)):
            return
        self._evaluators.training_is_done()
        self._say(f"the training is done; waiting for {names}, at most {EVALUATORS_GRACE_SECONDS:.0f} s")
        received = len(self._signals)
        self._loop(lambda: not self._evaluators.running or len(self._signals) > received, EVALUATORS_GRACE_SECONDS)

    def _await_exits(self, names: Set[str], limit: float) -> None:
        """Waits until these tasks have ended, for at most `limit` seconds, or until another Ctrl-C.

        SIGTERM may come again while the program saves, as from a second `tfdist cancel`.
        """
        received = self._signals.count(signal.SIGINT)
        if not self._tasks.running.isdisjoint(names):
            self._loop(lambda: self._tasks.running.isdisjoint(names) or self._signals.count(signal.SIGINT) > received, limit)

    def _receive_signals(self) -> Callable[[], None]:
        """Collects the signals that end the job or are passed on; returns a function that restores the earlier handlers."""
        previous = {number: signal.signal(number, lambda n, _: self._signals.append(n)) for number in ending_signals()}
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            previous[number] = signal.signal(number, lambda n, _: self._to_pass_on.append(n))

        def restore() -> None:
            for number, handler in previous.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: one that is not Python's.

        return restore
