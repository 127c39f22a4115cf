"""`StatusBoard`: the states of a running job and of its tasks, made from the events of the back end."""

import time
from collections.abc import Callable
from dataclasses import replace

from tfdist.cluster import Task
from tfdist.launch.jobs.events import Event, Exited, Listening, Memory, Ready, Started, Stopped, Used
from tfdist.launch.jobs.job import Job
from tfdist.launch.jobs.job_status import JobStatus, State, TaskStatus
from tfdist.launch.jobs.progress import Progress
from tfdist.launch.supervision.binding_now import BindingNow

ROOM = "room for a worker that joins (tfdist scale)"
"""The note of a task that does not run because it is not wanted."""

MEASURED_SECONDS = 0.5
"""How often measurements are published. Each task has its own, and a status of hundreds of tasks takes milliseconds."""


class StatusBoard:
    """The states, and who hears about changes."""

    def __init__(self, job: Job, publish: Callable[[JobStatus, bool], None]) -> None:
        """Begins with a job that starts.

        `publish` gets each new status, and whether only measurements are new: memory, use and progress.
        """
        training = job.cluster.training_tasks
        self._listeners = {task.name for task in training} if len(training) > 1 else set()
        self._tasks = {task.name: TaskStatus(task.name, State.STARTING, task.host or "") for task in job.cluster.tasks}
        self._addresses: dict[str, str] = {}
        self._stopped: set[str] = set()
        self._state = State.STARTING
        self._is_cancelled = False
        self._progress: Progress | None = None
        self._binding = BindingNow(job, time.monotonic)
        self._publish = publish
        self._has_measured = False  # Since measurements were last published.
        self._measured_at = 0.0

    @property
    def status(self) -> JobStatus:
        """The status now."""
        tasks = tuple(self._tasks.values())
        return JobStatus(self._state, tasks, progress=self._progress, binding=self._binding.of(tasks, self._progress))

    def progressed(self, progress: Progress) -> None:
        """Takes note of how far the training is."""
        self._progress = progress
        self._has_measured = True

    def tick(self) -> None:
        """Publishes new measurements, if there are any and it is time. Call it several times a second."""
        now = time.monotonic()
        if self._has_measured and now - self._measured_at >= MEASURED_SECONDS:
            self._has_measured, self._measured_at = False, now
            self._publish(self.status, True)

    def add(self, event: Event) -> None:
        """Takes note of an event."""
        if isinstance(event, Memory):
            self._set(event.task, memory=event.size)
            self._has_measured = True
        elif isinstance(event, Used):
            # A stopped task uses nothing; what it used before says nothing about what binds the others now.
            self._set(event.task, use=None if event.task in self._stopped else event.use)
            self._has_measured = True
        elif self._changes(event):
            if self._state == State.STARTING and all(task.state != State.STARTING for task in self._tasks.values()):
                self._state = State.RUNNING
            self._publish(self.status, False)

    def _changes(self, event: Event) -> bool:
        """Takes note of what is no measurement. Returns whether it has changed a state."""
        if isinstance(event, Ready):
            self._stopped.clear()
            for task in event.cluster.tasks:
                self._add_address(task)
        elif isinstance(event, Started):
            self._set(event.task, pid=event.pid)
        elif isinstance(event, Listening):
            self._set(event.task, state=State.RUNNING)
        elif isinstance(event, Exited):
            self._set_ended(event.task, event.code)
        elif isinstance(event, Stopped):
            stopped = f"stopped by {event.signal_name}" if event.signal is not None else self._addresses.get(event.task, "")
            (self._stopped.discard if event.signal is None else self._stopped.add)(event.task)
            self._set(event.task, note=stopped, use=None)
        else:
            return False
        return True

    def _add_address(self, task: Task) -> None:
        self._addresses[task.name] = task.address
        if self._tasks[task.name].state == State.QUEUED:
            self._set(task.name, where=task.host or "")
        else:
            state = State.STARTING if task.name in self._listeners else State.RUNNING
            self._set(task.name, state=state, where=task.host or "", note=task.address)

    def set_aside(self, name: str) -> None:
        """Takes note of a task that does not run for now because it is not wanted."""
        self._set(name, state=State.QUEUED, exit_code=None, memory=None, use=None, pid=None, note=ROOM)
        self._publish(self.status, False)

    def restarted(self, name: str, counts: bool = True) -> None:
        """Takes note of the restart of a task, which `counts` if it had failed."""
        restarts = self._tasks[name].restarts + counts
        # Neither "stopped by SIGSTOP", for which it was killed, nor that there is room for it holds any more.
        note = self._addresses.get(name, "")
        self._stopped.discard(name)
        self._set(name, state=State.RUNNING, exit_code=None, restarts=restarts, note=note)
        self._publish(self.status, False)

    def cancelled(self) -> None:
        """Takes note that the user ends the job: a task that ends from now on has not failed."""
        self._is_cancelled = True

    def ended(self, state: State, reason: str, exits: dict[str, int]) -> JobStatus:
        """Returns the final status."""
        for name, code in exits.items():
            self._set_ended(name, code)
        return JobStatus(state, tuple(self._tasks.values()), reason, progress=self._progress)

    def _set_ended(self, name: str, code: int) -> None:
        task = self._tasks[name]
        if task.state.is_final and task.exit_code == code:
            return  # What was known before the job was cancelled stays.
        failed = State.CANCELLED if self._is_cancelled else State.FAILED
        self._set(name, state=failed if code else State.SUCCEEDED, exit_code=code, memory=None, use=None, pid=None)

    def _set(self, name: str, **changes: object) -> None:
        self._tasks[name] = replace(self._tasks[name], **changes)  # type: ignore[arg-type]
