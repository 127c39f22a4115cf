"""Runs the tasks of a job on this machine, watches them, and ends them all: when it is done, when one fails, when asked to."""

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfdist.choice import Choice
from tfdist.cluster import Cluster, Task
from tfdist.launch.backends.local.processes import Exited, LocalTasks, Lost, Ready, Stopped, task_environment
from tfdist.launch.output import TaskOutput, Terminal
from tfdist.launch.restarts import Restarts
from tfdist.strategies import replaceable_jobs, serving_jobs
from tfdist.strategies.runtime.peers import is_listening, waiting_for
from tfdist.strategies.runtime.server import EXIT_CHIEF_FAILED

TICK_SECONDS = 0.1
TELL_SECONDS = 10.0
GRACE_SECONDS = 5.0
"""How long a training task may take to end when asked; then it is killed."""

SERVER_GRACE_SECONDS = 1.0
"""The same for servers, which have nothing to save. With the times of backends/local/fork_server.py, all have ended within 10 seconds."""

EVALUATORS_GRACE_SECONDS = 600.0
"""How long evaluators may take, when the training is done, for the checkpoints that are left."""

SETTLE_SECONDS = 8.0
"""How long a task that ended because of another may be ahead of that other's own end."""


@dataclass(frozen=True)
class Failure:
    """Why a job failed: a sentence, the exit code, and the task to blame where there is one."""

    reason: str
    exit_code: int
    task: str | None = None


@dataclass
class Outcome:
    """How a job ended."""

    failure: Failure | None
    seconds: float
    exits: dict[str, int] = field(default_factory=dict)
    """Task name -> exit code, minus the signal's number where a signal ended it; tasks that were ended are included."""
    restarts: dict[str, int] = field(default_factory=dict)
    """How often each task was started again that the others can do without."""


class Supervisor:
    """One job on this machine."""

    def __init__(
        self,
        cluster: Cluster,
        choice: Choice,
        program: dict[str, Any],
        *,
        tasks: LocalTasks,
        log_dir: Path,
        terminal: Terminal,
        start_timeout: float,
    ) -> None:
        """Prepares the job; `run` starts it.

        Args:
            cluster: the prepared cluster, with held addresses.
            choice: its strategy.
            program: what every task runs (see backends/local/run_program.py).
            tasks: the fork server, which may still be importing TensorFlow.
            log_dir: an existing folder for the tasks' output.
            terminal: where their output is shown.
            start_timeout: seconds until every serving task and the chief must listen.
        """
        self._cluster = cluster
        self._choice = choice
        self._program = program
        self._tasks = tasks
        self._log_dir = log_dir
        self._terminal = terminal
        self._start_timeout = start_timeout
        serving = serving_jobs(choice.strategy)
        self._all = {task.name: task for task in cluster.training_tasks}
        self._training = {name for name, task in self._all.items() if task.job not in serving}
        # One task alone, and tasks that train without others, need not listen.
        self._awaited: list[Task] = list(self._all.values()) if len(self._all) > 1 else []
        self._outputs: dict[str, TaskOutput] = {}
        self._outcome = Outcome(None, 0.0)
        self._suspect: tuple[float, Failure] | None = None  # (when to believe it, it)
        replaceable = [task for task in self._all.values() if task.job in replaceable_jobs(choice.strategy)]
        self._evaluators = self._restarts(cluster.job("evaluator"))
        self._workers = self._restarts(replaceable)
        self._asked_to_end: list[int] = []
        self._begin = time.monotonic()
        self._started = self._told = self._begin

    def run(self) -> Outcome:
        """Runs the job to its end; when it returns, no process of it is left."""
        restore = self._listen_to_signals()
        try:
            with selectors.DefaultSelector() as selector:
                self._selector = selector
                selector.register(self._tasks, selectors.EVENT_READ, self._on_event)
                failure = self._loop(self._verdict, limit=None)
                self._outcome.failure = failure
                self._outcome.seconds = time.monotonic() - self._begin
                self._end_tasks()
        finally:
            self._tasks.close()
            for output in self._outputs.values():
                output.close()
            restore()
        self._outcome.restarts = self._evaluators.counts | self._workers.counts
        return self._outcome

    def last_lines(self, task: str) -> list[str]:
        """The end of what a task printed, at most 20 lines."""
        return list(self._outputs[task].last) if task in self._outputs else []

    # The loop: events in, at each turn one question.

    def _loop(self, verdict: Callable[[], "Failure | bool"], limit: float | None) -> Failure | None:
        """Handles events until `verdict` is a Failure (returned) or True (None), or `limit` seconds have passed."""
        deadline = None if limit is None else time.monotonic() + limit
        while deadline is None or time.monotonic() < deadline:
            for key, _ in self._selector.select(TICK_SECONDS):
                key.data()
            self._evaluators.tick()
            self._workers.tick()
            answer = verdict()
            if isinstance(answer, Failure):
                return answer
            if answer:
                return None
        return None

    def _verdict(self) -> "Failure | bool":
        """Whether the job is done (True), failed (why), or goes on (False)."""
        if self._asked_to_end:
            number = self._asked_to_end[0]
            return Failure(f"ended by {signal.Signals(number).name}", 128 + number)
        if all(self._outcome.exits.get(name) == 0 for name in self._training):
            return self._nobody_served() or True
        if self._suspect and time.monotonic() >= self._suspect[0]:
            return self._suspect[1]
        return self._start_verdict()

    def _nobody_served(self) -> Failure | None:
        serving = self._all.keys() - self._training
        if serving and serving <= {task.name for task in self._awaited}:
            reason = "the program ended without calling tfdist.strategy(): every task ran all of it, none served"
            return Failure(reason, 1, self._reporter())
        return None

    def _start_verdict(self) -> "Failure | bool":
        if not self._outputs:
            if time.monotonic() - self._begin > self._start_timeout:
                return Failure(f"gave up: importing TensorFlow took more than {self._start_timeout:.0f} s (--start_timeout)", 1)
            return False
        if not self._awaited:
            return False
        ended = self._outcome.exits  # A program that ends well without ever listening had nothing to share.
        self._awaited = [task for task in self._awaited if ended.get(task.name) != 0 and not is_listening(task, timeout=0.2)]
        waited = time.monotonic() - self._started
        if self._awaited and waited > self._start_timeout:
            return Failure(
                f"gave up after {waited:.0f} s (--start_timeout): {waiting_for(self._awaited)} did not come up; "
                "does the program call tfdist.strategy on every task?",
                1,
            )
        if self._awaited and time.monotonic() - self._told > TELL_SECONDS:
            self._told = time.monotonic()
            self._terminal.say(f"waiting {waited:.0f} s for {waiting_for(self._awaited)}")
        return False

    def _on_event(self) -> None:
        event = self._tasks.read()
        if isinstance(event, Ready):
            self._started = self._told = time.monotonic()
            for task in [*self._all.values(), *self._cluster.job("evaluator")]:
                self._start(task)
        elif isinstance(event, Exited):
            self._outcome.exits[event.task] = event.code
            restarts = self._restarts_for(event)
            if restarts is not None:
                restarts.exited(event.task, event.code, event.how)
            else:
                self._judge(event)
        elif isinstance(event, Stopped):
            self._note_stop(event)
        elif isinstance(event, Lost):
            self._selector.unregister(self._tasks)
            self._evaluators.stop()
            self._workers.stop()
            for name in self._all.keys() | self._evaluators.names:
                self._outcome.exits.setdefault(name, -signal.SIGKILL)
            self._suspect = (
                0.0,
                Failure(f"the parent of all tasks is gone: {event.reason}; see {self._log_dir / 'fork_server.log'}", 1),
            )

    def _restarts(self, tasks: Iterable[Task]) -> Restarts:
        def kill(task: Task) -> None:
            self._tasks.signal([task.name], signal.SIGKILL)

        return Restarts(tasks, start=self._start, kill=kill, say=self._terminal.say)

    def _restarts_for(self, event: Exited) -> Restarts | None:
        """What starts the task again that has ended so; None where the job stands or falls with it."""
        if event.task in self._evaluators.names:
            return self._evaluators
        came_up = event.task not in {task.name for task in self._awaited}
        # A worker that exits by itself would do so again, and so might one that never came up.
        return self._workers if event.task in self._workers.names and came_up and event.code < 0 else None

    def _note_stop(self, event: Stopped) -> None:
        if event.told:
            self._terminal.say(event.told)
        for restarts in (self._evaluators, self._workers):
            if event.task in restarts.names:
                restarts.stopped(event.task, event.signal is not None)

    def _start(self, task: Task) -> None:
        shows_progress = self._terminal.is_tty and task.name in self._training
        earlier = self._outputs.pop(task.name, None)
        if earlier is not None:
            self._outcome.exits.pop(task.name, None)
            if earlier.fileno() in self._selector.get_map():
                self._selector.unregister(earlier)
            earlier.close()
        output = TaskOutput(
            task.name, self._log_dir / task.log_name, self._terminal, shows_progress, append=earlier is not None
        )
        environment = task_environment(self._cluster, self._choice, task)
        if task.name in self._training:
            report = str(self._log_dir.absolute() / "report.json")  # The program may change its folder.
            environment["TFDIST_REPORT"] = report if task.name == self._reporter() else ""
        self._tasks.start(task.name, self._program, environment, output.write_end, output.write_end)
        output.started()
        self._outputs[task.name] = output
        self._selector.register(output, selectors.EVENT_READ, lambda: self._pump(output))

    def _reporter(self) -> str:
        """The task whose steps and metrics are the job's: the chief, else the first that trains."""
        return next(name for name in self._all if name in self._training)

    def _pump(self, output: TaskOutput) -> None:
        if not output.pump():
            self._selector.unregister(output)

    def _judge(self, event: Exited) -> None:
        """Remembers the failure that came first and is not the consequence of another."""
        if event.task in self._training and event.code == 0:
            return
        serving = self._all.keys() - self._training - (self._workers.names - set(self._workers.running))
        if event.code == 0 and all(self._outcome.exits.get(name) == 0 for name in serving) and not self._nobody_served():
            if self._suspect and self._suspect[1].task in serving:
                self._suspect = None  # They have ended because the chief told them to; it has its time to end.
            return
        now = time.monotonic()
        if event.task not in self._training and event.code in (0, EXIT_CHIEF_FAILED):
            # A server ends when the chief's program has ended, a moment before the chief's process has.
            reason = f"{event.task} ended by itself while the chief was still running"
            suspect = (now + SETTLE_SECONDS, Failure(reason, event.code or 1, event.task))
        else:
            early = [name for name, code in self._outcome.exits.items() if code == 0 and name in self._training]
            before = f"; {', '.join(early)} had ended with 0 before" if early else ""
            reason = f"{event.task} failed first: {event.how}{before}"
            suspect = (now, Failure(reason, _exit_code(event.code), event.task))
        if self._suspect is None or suspect[0] < self._suspect[0]:
            self._suspect = suspect

    # The end.

    def _end_tasks(self) -> None:
        """Lets servers end by themselves after success; else asks every task to end, and kills what does not."""
        self._workers.stop()
        if self._outcome.failure is None:
            self._await_end(self._all.keys(), GRACE_SECONDS)
            self._await_evaluators()
        self._evaluators.stop()
        # Those that train first: their connections to the servers then close in order, not in pages of errors. A program that
        # is interrupted may want to save: Python turns SIGINT into KeyboardInterrupt.
        interrupted = self._asked_to_end[:1] == [signal.SIGINT]
        self._tasks.signal(self._training - self._outcome.exits.keys(), signal.SIGINT if interrupted else signal.SIGTERM)
        self._tasks.signal(self._evaluators.names - self._outcome.exits.keys(), signal.SIGTERM)
        self._await_end(self._training, GRACE_SECONDS)
        self._tasks.signal(self._all.keys() - self._training - self._outcome.exits.keys(), signal.SIGTERM)
        self._await_end(self._all.keys() - self._training, SERVER_GRACE_SECONDS)
        everything = self._all.keys() | self._evaluators.names
        self._tasks.signal(everything - self._outcome.exits.keys(), signal.SIGKILL)
        self._await_end(everything, 1.0)

    def _await_evaluators(self) -> None:
        """After success: lets evaluators finish the checkpoints that are left."""
        if not self._evaluators.running:
            return
        names = ", ".join(self._evaluators.running)
        self._terminal.say(f"the training is done; waiting for {names}, at most {EVALUATORS_GRACE_SECONDS:.0f} s")
        asked = len(self._asked_to_end)
        self._loop(lambda: not self._evaluators.running or len(self._asked_to_end) > asked, EVALUATORS_GRACE_SECONDS)

    def _await_end(self, names: Set[str], limit: float) -> None:
        """Waits until these tasks have ended, for at most `limit` seconds or until another signal asks to hurry."""
        asked = len(self._asked_to_end)
        if self._outputs:
            self._loop(lambda: names <= self._outcome.exits.keys() or len(self._asked_to_end) > asked, limit)

    def _listen_to_signals(self) -> Callable[[], None]:
        previous = {
            number: signal.signal(number, lambda n, _: self._asked_to_end.append(n))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }

        def restore() -> None:
            for number, handler in previous.items():
                signal.signal(number, handler)

        return restore


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def new_log_dir(log_dir: str | None) -> Path:
    """Creates and returns the folder for the tasks' output: `log_dir`, or a new one below `tfdist_logs`."""
    if log_dir is None:
        log_dir = os.path.join("tfdist_logs", time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}")
    path = Path(log_dir)
    path.mkdir(parents=True, exist_ok=True)
    return path
