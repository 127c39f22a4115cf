"""`JobStatus`: how a job and its tasks are doing, in the same words for every back end."""

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tfdist.launch.jobs.progress import Progress
from tfdist.planner.use import Use


class State(str, enum.Enum):
    """The states of a job and of a task. Each is its text."""

    def __str__(self) -> str:  # As that of enum.StrEnum, which Python 3.10 lacks.
        return str(self.value)

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec)

    QUEUED = "queued"
    """Accepted; nothing runs yet."""
    STARTING = "starting"
    """The back end prepares; for a task: it runs, and does not listen yet."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Its supervision is gone without having said how it ended."""

    @property
    def is_final(self) -> bool:
        """Whether nothing follows."""
        return self in (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST)


@dataclass(frozen=True)
class TaskStatus:
    """How a task is doing.

    Attributes:
        name: `job:index`.
        state: its state.
        where: host, node or pod; empty if unknown.
        exit_code: exit code, or minus the number of the signal that killed it; None while it runs or if unknown.
        restarts: how often it was started again.
        note: what else is known: what it waits for, the path of its log.
        memory: resident memory of its process in bytes; None if unknown.
        use: what it uses of its processor and link; None if unknown.
        pid: process id, on its host; None while it does not run, or if unknown.
    """

    name: str
    state: State
    where: str = ""
    exit_code: int | None = None
    restarts: int = 0
    note: str = ""
    memory: int | None = None
    use: Use | None = None
    pid: int | None = None


@dataclass(frozen=True)
class JobStatus:
    """How a job is doing.

    Attributes:
        state: its state.
        tasks: its tasks, as far as they are known.
        reason: a sentence: what it waits for, why it failed; or empty.
        exit_code: the exit code that the launcher would have had; None before the end, or if unknown.
        progress: how far the training is; None if unknown.
        binding: while it trains, what binds (`planner.binding.Binding.as_json`); None before anything is known, and after it.
    """

    state: State
    tasks: tuple[TaskStatus, ...] = ()
    reason: str = ""
    exit_code: int | None = None
    progress: Progress | None = None
    binding: Mapping[str, Any] | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "JobStatus":
        """Returns the status of what `as_json` has returned; of nothing that of a job that starts."""
        tasks = tuple(map(_task, values.get("tasks", ())))
        progress = Progress.from_json(values["progress"]) if values.get("progress") else None
        state = State(values.get("state", "starting"))
        return cls(state, tasks, values.get("reason", ""), values.get("exit_code"), progress, values.get("binding"))

    def as_json(self) -> dict[str, Any]:
        """Returns a dict for `json.dumps`: the attributes, with `tasks` as a list of dicts, in which `task` is the name."""
        values = {**vars(self), "progress": self.progress and asdict(self.progress)}
        tasks = values.pop("tasks")
        return {**values, "tasks": [_as_json(task) for task in tasks]}


def _task(values: Mapping[str, Any]) -> TaskStatus:
    known = {each.name for each in fields(TaskStatus)}
    found = {name: value for name, value in values.items() if name in known}
    use = Use.from_json(values["use"]) if values.get("use") else None
    return TaskStatus(values["task"], **found | {"state": State(values["state"]), "use": use})


def _as_json(task: TaskStatus) -> dict[str, Any]:
    values = {**vars(task), "use": task.use and vars(task.use)}  # `asdict` takes long for hundreds of tasks.
    return {"task": values.pop("name"), **values}


def read(path: Path) -> JobStatus | None:
    """Returns the status that is in a file as JSON; None if it cannot be read."""
    try:
        return JobStatus.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
