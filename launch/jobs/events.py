"""Events that happen to the processes of tasks, as a back end reports them (`backends/interface.py`)."""

import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tfdist.cluster import Cluster
from tfdist.planner.use import Use


@dataclass(frozen=True)
class Exited:
    """The process of a task ended.

    Attributes:
        task: `job:index`.
        code: exit code, or minus the number of the signal that killed the process.
        note: what else is known about the cause, as the end of a sentence; or empty.
    """

    task: str
    code: int
    note: str = ""

    @property
    def cause(self) -> str:
        """The exit code in words, as the second half of a sentence."""
        note = f", {self.note}" if self.note else ""
        if self.code >= 0:
            return f"it exited with {self.code}{note}"
        try:
            return f"it was killed by {signal.Signals(-self.code).name}{note}"
        except ValueError:
            return f"it was killed by signal {-self.code}{note}"


@dataclass(frozen=True)
class NotStarted(Exited):
    """The process of a task could not be started; `note` says why."""

    code: int = 1

    @property
    def cause(self) -> str:
        """See `Exited`."""
        return f"it could not be started: {self.note}"


@dataclass(frozen=True)
class Unreachable(Exited):
    """The connection to a task is gone, and the task with it; `note` says why, as the second half of a sentence.

    Attributes:
        code: how such a task ends.
        had_started: whether the process had been started. False: a new connection could not be made, or not used.
    """

    code: int = -signal.SIGKILL
    had_started: bool = True

    @property
    def cause(self) -> str:
        """See `Exited`."""
        return f"it cannot be reached any more: {self.note}"


@dataclass(frozen=True)
class Output:
    """A task has printed something.

    Attributes:
        task: `job:index`.
        data: the bytes, cut anywhere.
        is_last: whether this process of the task prints nothing more: its last line ends here.
    """

    task: str
    data: bytes
    is_last: bool = False


@dataclass(frozen=True)
class Started:
    """The process of a task was started. A back end need not report it.

    Attributes:
        task: `job:index`.
        pid: its process id, where it runs.
    """

    task: str
    pid: int


@dataclass(frozen=True)
class Memory:
    """How much memory a task uses now. A back end need not report it.

    Attributes:
        task: `job:index`.
        size: resident memory of its process in bytes, with what it shares with other processes.
    """

    task: str
    size: int


@dataclass(frozen=True)
class Used:
    """What the task `job:index` has used of its processor and link in the last seconds. A back end need not report it."""

    task: str
    use: Use


@dataclass(frozen=True)
class Listening:
    """The task `job:index` accepts connections at its address: it has started."""

    task: str


@dataclass(frozen=True)
class Stopped:
    """A signal stopped the process of a task, or the process resumed.

    Attributes:
        task: `job:index`.
        pid: its process id.
        signal: number of the signal; None where the process resumed.
    """

    task: str
    pid: int
    signal: int | None

    @property
    def message(self) -> str | None:
        """A sentence about a process that was stopped; None for one that resumed."""
        if self.signal is None:
            return None
        return f"{self.task} was stopped by {self.signal_name}; `kill -CONT {self.pid}` resumes it"

    @property
    def signal_name(self) -> str:
        """The name of the signal."""
        return signal.Signals(self.signal).name if self.signal is not None else ""


@dataclass(frozen=True)
class Ready:
    """The back end can start tasks.

    Attributes:
        cluster: the cluster with the addresses at which the tasks will listen.
        warnings: sentences for the user that the plan could not know.
    """

    cluster: Cluster
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lost:
    """The back end ended, and all tasks with it.

    Attributes:
        reason: a sentence that says what ended, and why.
        refused: whether no task can run with what is installed: starting again would not help.
        is_host_away: whether nothing on a host answers, which may be starting.
    """

    reason: str
    refused: bool = False
    is_host_away: bool = False


Event = Exited | Output | Started | Memory | Used | Listening | Stopped | Ready | Lost
"""What a back end reports. `NotStarted` and `Unreachable` are `Exited`."""

_SENT: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Exited, NotStarted, Started, Memory, Used, Listening, Stopped, Lost)
}


def as_json(event: Exited | Started | Memory | Used | Listening | Stopped | Lost) -> dict[str, Any]:
    """Returns a dict for `json.dumps`, with the name of the class as `event`."""
    return {"event": type(event).__name__, **asdict(event)}


def from_json(values: Mapping[str, Any]) -> Event:
    """Returns the event of which `as_json` has returned the dict."""
    fields = {name: value for name, value in values.items() if name != "event"}
    if "use" in fields:
        fields["use"] = Use.from_json(fields["use"])
    event: Event = _SENT[values["event"]](**fields)
    return event
