"""`RunningTasks`: the tasks of a job with their output and their exit codes, whatever back end runs them."""

from collections import deque
from collections.abc import Callable, Iterable

from tfdist.cluster import Cluster, Task
from tfdist.launch.backends.interface import TaskRunner
from tfdist.launch.jobs.events import Event, Exited, Output, Ready
from tfdist.launch.jobs.job import Job, JobFiles
from tfdist.launch.terminal.output import TaskOutput, Terminal


class RunningTasks:
    """Starts tasks, passes their output on, and records their exit codes.

    Attributes:
        cluster: the cluster, since `Ready` with the addresses of the tasks.
        exits: exit code by task name, minus the number of the signal that killed the task. A restarted task has none.
        waits_for_reader: whether nothing that tasks print is taken from them now, so that they wait for a slow reader.
    """

    def __init__(self, job: Job, files: JobFiles, runner: TaskRunner, terminal: Terminal, is_restart: bool = False) -> None:
        self.cluster: Cluster = job.cluster
        self.exits: dict[str, int] = {}
        self.waits_for_reader = False
        self._is_restart = is_restart
        self._has_printed = False
        self._files = files
        self._runner = runner
        self._terminal = terminal
        self._training = {task.name for task in job.training}
        self._reporter = job.reporter.name
        self._outputs: dict[str, TaskOutput] = {}
        self._events: deque[Event] = deque()

    @property
    def any_started(self) -> bool:
        """Whether a task was started."""
        return bool(self._outputs)

    @property
    def running(self) -> set[str]:
        """The names of the tasks that were started and have not exited."""
        return self._outputs.keys() - self.exits.keys()

    def poll(self, timeout: float) -> Event | None:
        """Passes output on for at most `timeout` seconds, until something happens; returns the event, if there is one."""
        self._terminal.tick()
        if self._events:
            timeout = 0.0
        # Behind a slow reader the tasks wait in their own writes, as they would without the launcher.
        has_room = self._terminal.wait_for_room(timeout)
        self.waits_for_reader = not has_room
        self._take(self._runner.poll(timeout if has_room else 0, output=has_room))
        event = self._events.popleft() if self._events else None
        if isinstance(event, Exited):
            self.exits[event.task] = event.code
        elif isinstance(event, Ready):
            self.cluster = event.cluster
        return event

    def have_printed(self) -> bool:
        """Returns whether a training task has printed something since the last call."""
        answer, self._has_printed = self._has_printed, False
        return answer

    def start(self, task: Task) -> None:
        """Starts a task, or restarts one that exited."""
        task = self.cluster.find(task.job, task.index)
        is_training = task.name in self._training
        earlier = self._outputs.get(task.name)
        if earlier is None:
            self._outputs[task.name] = TaskOutput(task.name, self._files.log(task), self._terminal, self._is_restart)
        else:
            self.exits.pop(task.name, None)
        environment = {"TFDIST_REPORT": ""} if is_training else {}
        # The program may change its working directory.
        report = str(self._files.report.absolute()) if task.name == self._reporter else None
        self._runner.start(task, environment, report, self._terminal.is_tty and is_training)

    def signal(self, names: Iterable[str], number: int) -> None:
        """Sends a signal to those tasks of `names` that have not exited."""
        self._runner.signal([name for name in names if name not in self.exits], number)

    def close(self, keep: Callable[[TaskRunner], list[Event]] | None = None) -> None:
        """Ends all tasks, and reads and closes their output. See `Attached.keep`."""
        self._take(keep(self._runner) if keep is not None else self._runner.close())
        for output in self._outputs.values():
            output.close()

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Output):
                self._outputs[event.task].add(event.data, event.is_last)
                self._has_printed = self._has_printed or event.task in self._training
            else:
                self._events.append(event)
