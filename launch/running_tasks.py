"""`RunningTasks`: the processes of a job's tasks with their output and their exit codes."""

import selectors
import time
from collections import deque
from collections.abc import Iterable

from tfdist.cluster import Task
from tfdist.launch.backends.local.processes import LocalProcesses
from tfdist.launch.events import Event, Exited, Lost, NotStarted
from tfdist.launch.job import Job
from tfdist.launch.output import TaskOutput, Terminal


class RunningTasks:
    """Starts tasks, passes their output on, and records their exit codes.

    Attributes:
        exits: exit code by task name, minus the number of the signal that killed the task. A restarted task has none.
    """

    def __init__(self, job: Job, processes: LocalProcesses, terminal: Terminal) -> None:
        self.exits: dict[str, int] = {}
        self._job = job
        self._processes = processes
        self._terminal = terminal
        self._outputs: dict[str, TaskOutput] = {}
        self._not_started: deque[NotStarted] = deque()
        self._selector = selectors.DefaultSelector()
        self._selector.register(processes, selectors.EVENT_READ)

    @property
    def any_started(self) -> bool:
        """Whether a task was started."""
        return bool(self._outputs)

    def poll(self, timeout: float) -> Event | None:
        """Passes output on for at most `timeout` seconds, until something happens; returns the event, if there is one."""
        event: Event | None = None
        # Behind a slow reader the tasks wait in their own writes, as they would without the launcher.
        has_room = self._terminal.wait_for_room(timeout)
        for key, _ in self._selector.select(timeout if has_room and not self._not_started else 0):
            if not isinstance(key.fileobj, TaskOutput):
                event = self._processes.read()
            elif has_room and not key.fileobj.pump():
                self._selector.unregister(key.fileobj)
        if event is None and self._not_started:
            event = self._not_started.popleft()
        if isinstance(event, Exited):
            self.exits[event.task] = event.code
        elif isinstance(event, Lost):
            self._selector.unregister(self._processes)
        return event

    def start(self, task: Task) -> None:
        """Starts a task, or restarts one that exited."""
        is_training = task in self._job.training
        earlier = self._outputs.pop(task.name, None)
        if earlier is not None:
            self.exits.pop(task.name, None)
            if earlier.fileno() in self._selector.get_map():
                self._selector.unregister(earlier)
            earlier.close()
        try:
            output = TaskOutput(
                task.name,
                self._job.log(task),
                self._terminal,
                use_terminal=self._terminal.is_tty and is_training,
                append=earlier is not None,
            )
        except OSError as error:  # Too many open files.
            self._not_started.append(NotStarted(task.name, 1, time.time(), str(error)))
            return
        environment = {}
        if is_training:
            path = self._job.report.absolute()  # The program may change its working directory.
            environment["TFDIST_REPORT"] = str(path) if task == self._job.reporter else ""
        try:
            self._processes.start(task, output.write_end, environment)
        except OSError as error:
            self._not_started.append(NotStarted(task.name, 1, time.time(), str(error)))
        output.started()
        self._outputs[task.name] = output
        self._selector.register(output, selectors.EVENT_READ)

    def signal(self, names: Iterable[str], number: int) -> None:
        """Sends a signal to those tasks of `names` that have not exited."""
        self._processes.signal([name for name in names if name not in self.exits], number)

    def close(self) -> None:
        """Ends all processes, and reads and closes their output."""
        self._processes.close()
        for output in self._outputs.values():
            output.close()
        self._selector.close()
