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
    """

    task: str
    code: int
    time: float

    @property
    def cause(self) -> str:
        """The exit code in words, as the second half of a sentence."""
        if self.code >= 0:
            return f"it exited with {self.code}"
        try:
            return f"it was killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"it was killed by signal {-self.code}"


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
        return f"{self.task} was stopped by {signal.Signals(self.signal).name}; `kill -CONT {self.pid}` resumes it"


@dataclass(frozen=True)
class Ready:
    """The backend can start tasks."""


@dataclass(frozen=True)
class Lost:
    """The backend ended, and all tasks with it.

    Attributes:
        reason: why, as the second half of a sentence.
    """

    reason: str


Event = Exited | Stopped | Ready | Lost
