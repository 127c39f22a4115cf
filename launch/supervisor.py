"""Runs a job on this machine: starts its tasks, watches them, and ends them all.

A job ends when its program has finished, when a required task fails, or when the user ends it.
"""

import signal
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from typing import Any

from tfdist.cluster import Task
from tfdist.launch.backends.local.processes import LocalProcesses
from tfdist.launch.events import Event, Exited, Lost, NotStarted, Ready, Stopped
from tfdist.launch.failure import Failure, FirstFailure
from tfdist.launch.job import Job
from tfdist.launch.output import Terminal
from tfdist.launch.restarts import Restarts
from tfdist.launch.running_tasks import RunningTasks
from tfdist.launch.startup import Startup

TICK_SECONDS = 0.1

GRACE_SECONDS = 5.0
"""How long a training task may take to end after a signal, before it is killed."""

SERVER_GRACE_SECONDS = 1.0
"""The same for servers, which have nothing to save. With the times of `fork_server.py`, all tasks end within 10 seconds."""

EVALUATORS_GRACE_SECONDS = 600.0
"""How long evaluators may take, after the training, for the remaining checkpoints."""

NO_TASK_SERVED = "the program ended without calling tfdist.strategy(): every task ran the whole program, and no task served"


@dataclass
class Outcome:
    """How a job ended.

    Attributes:
        failure: why the job failed; None after success.
        seconds: duration of the job, without its end.
        exits: exit code by task name, minus the number of the signal that ended the task, for all tasks.
        restarts: number of restarts by task name, for the tasks that may be restarted.
        report: steps and metrics, as the reporter has written them (strategies/runtime/run_summary.py).
    """

    failure: Failure | None
    seconds: float
    exits: dict[str, int] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)


class Supervisor:
    """Runs one job."""

    def __init__(self, job: Job, processes: LocalProcesses, terminal: Terminal, start_timeout: float) -> None:
        """Prepares the job; `run` runs it.

        Args:
            job: the job, whose ports are held.
            processes: starts its tasks; may still be importing TensorFlow.
            terminal: shows their output.
            start_timeout: seconds until every serving task and the chief must listen.
        """
        self._job = job
        self._processes = processes
        self._say = terminal.say
        self._tasks = RunningTasks(job, processes, terminal)
        self._training = {task.name for task in job.training}
        self._servers = {task.name for task in job.serving}
        self._startup = Startup(job, start_timeout, terminal.say)
        self._first_failure = FirstFailure(job, self._tasks.exits)
        self._evaluators = self._make_restarts(job.cluster.job("evaluator"))
        self._workers = self._make_restarts(job.replaceable)
        self._signals: list[int] = []

    def run(self) -> Outcome:
        """Runs the job to its end; when it returns, all processes of the job have ended."""
        begin = time.monotonic()
        restore_signals = self._receive_signals()
        try:
            failure = self._loop(self._verdict, limit=None)
            seconds = time.monotonic() - begin
            self._end_tasks(failure)
            report = self._job.read_report()  # The fork server removes its folder.
        finally:
            self._tasks.close()
            restore_signals()
        return Outcome(failure, seconds, self._tasks.exits, self._evaluators.counts | self._workers.counts, report)

    def _loop(self, verdict: Callable[[], "Failure | bool"], limit: float | None) -> Failure | None:
        """Handles events until `verdict` returns a Failure, which it returns, or True, or until `limit` seconds have passed."""
        deadline = None if limit is None else time.monotonic() + limit
        while deadline is None or time.monotonic() < deadline:
            event = self._tasks.poll(TICK_SECONDS)
            if event is not None:
                self._handle(event)
            self._evaluators.tick()
            self._workers.tick()
            answer = verdict()
            if isinstance(answer, Failure):
                return answer
            if answer:
                return None
        return None

    def _verdict(self) -> "Failure | bool":
        """Returns whether the job is done (True), failed (why), or continues (False)."""
        if self._signals:
            number = self._signals[0]
            return Failure(f"ended by {signal.Signals(number).name}", 128 + number)
        if all(self._tasks.exits.get(name) == 0 for name in self._training):
            return Failure(NO_TASK_SERVED, 1, self._job.reporter.name) if self._startup.no_task_served else True
        return self._first_failure.get() or self._startup.check(self._tasks.exits) or False

    def _handle(self, event: Event) -> None:
        if isinstance(event, Ready):
            self._startup.ready()
            for task in self._job.cluster.tasks:
                self._tasks.start(task)
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
            reason = f"the parent process of all tasks is gone: {event.reason}"
            failure = Failure(event.reason, 2) if event.refused else Failure(reason, 1, log=self._processes.log)
            self._first_failure.report(failure)

    def _handle_exit(self, event: Exited) -> None:
        """Plans the restart of a task that may be replaced; judges the exit of another."""
        if event.task in self._evaluators.names:
            self._evaluators.exited(event)
        elif event.task in self._workers.names and self._may_be_restarted(event):
            self._workers.exited(event)
        else:
            given_up = self._workers.names - set(self._workers.running)
            self._first_failure.exited(event, self._servers - given_up, self._startup.no_task_served)

    def _may_be_restarted(self, event: Exited) -> bool:
        """Returns whether a worker may run longer next time: one that exits by itself, or never listened, may do it again."""
        return (event.code < 0 or isinstance(event, NotStarted)) and not self._startup.is_missing(event.task)

    def _make_restarts(self, tasks: Iterable[Task]) -> Restarts:
        return Restarts(tasks, start=self._tasks.start, kill=self._processes.kill, say=self._say)

    def _end_tasks(self, failure: Failure | None) -> None:
        """After success, lets servers end by themselves. Otherwise signals every task to end, and kills those that do not."""
        self._workers.stop()
        if failure is None:
            self._await_exits(self._training | self._servers, GRACE_SECONDS)
            self._await_evaluators()
        self._evaluators.stop()
        # Training tasks end first: their connections to the servers then close in order, without pages of errors. They receive
        # SIGINT after Ctrl-C, which Python turns into KeyboardInterrupt: the program may want to save.
        interrupted = self._signals[:1] == [signal.SIGINT]
        self._tasks.signal(self._training, signal.SIGINT if interrupted else signal.SIGTERM)
        self._tasks.signal(self._evaluators.names, signal.SIGTERM)
        self._await_exits(self._training, GRACE_SECONDS)
        self._tasks.signal(self._servers, signal.SIGTERM)
        self._await_exits(self._servers, SERVER_GRACE_SECONDS)
        everything = self._training | self._servers | self._evaluators.names
        self._tasks.signal(everything, signal.SIGKILL)
        self._await_exits(everything, 1.0)

    def _await_evaluators(self) -> None:
        """After success, waits until the evaluators have evaluated the remaining checkpoints."""
        if not self._evaluators.running:
            return
        names = ", ".join(self._evaluators.running)
        self._say(f"the training is done; waiting for {names}, at most {EVALUATORS_GRACE_SECONDS:.0f} s")
        received = len(self._signals)
        self._loop(lambda: not self._evaluators.running or len(self._signals) > received, EVALUATORS_GRACE_SECONDS)

    def _await_exits(self, names: Set[str], limit: float) -> None:
        """Waits until these tasks have ended, for at most `limit` seconds, or until the launcher receives another signal."""
        received = len(self._signals)
        if self._tasks.any_started:
            self._loop(lambda: names <= self._tasks.exits.keys() or len(self._signals) > received, limit)

    def _receive_signals(self) -> Callable[[], None]:
        """Collects the signals that end the launcher; returns a function that restores the earlier handlers."""
        previous = {
            number: signal.signal(number, lambda n, _: self._signals.append(n))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }

        def restore() -> None:
            for number, handler in previous.items():
                signal.signal(number, handler)

        return restore
