"""Events that happen to the processes of tasks, as a backend reports them."""

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Exited:
    """The process of a task ended.

    Attributes:
        task: `job:index`.
        code: exit code, or minus the number of the signal that killed the process.
        time: seconds since the epoch.
        note: what else is known about the cause, as the end of a sentence; or empty.
    """

    task: str
    code: int
    time: float
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

    @property
    def cause(self) -> str:
        """See `Exited`."""
        return f"it could not be started: {self.note}"


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
    """The backend can start tasks."""


@dataclass(frozen=True)
class Lost:
    """The backend ended, and all tasks with it.

    Attributes:
        reason: why, as the second half of a sentence.
        refused: whether no task can run with what is installed; the reason is then a whole sentence.
    """

    reason: str
    refused: bool = False


Event = Exited | Stopped | Ready | Lost  # NotStarted is an Exited.
