"""`Execution`: a call of a function on a worker group, its owner and its states."""

import enum
from collections.abc import Callable
from typing import Any


class State(enum.Enum):
    """The states of an execution."""

    QUEUED = "waits for a group"
    RUNNING = "a group runs it"
    FINISHED = "the chief has its result"
    CANCELLED = "no group starts it any more, and nobody gets its result"


class Execution:
    """One call of a function on a worker group.

    Attributes:
        function: the function.
        owner: the object that takes the result from `wait_for_any`; None if only the execution itself holds it.
        state: its state. A backup queues it again while a group that does not answer still runs it.
        running: the groups that run it, by number, and when they have started, in seconds of the clock of the executions.
        group: the number of the group that has finished it; -1 before.
        seconds: how long that group took, without the time of tracing; 0 before.
        counting: since when that group counts its metrics, see `Membership.counting`.
        order: how many executions had finished with it; 0 before. The chief may get the results in another order: while a live
            group still runs an execution, its result waits.
        result: what the function returned, on the chief; None before.
        error: what the function has raised, if a group will not run it again.
    """

    def __init__(self, function: Callable[[int], Any], owner: Any = None) -> None:
        self.function = function
        self.owner = owner
        self.state = State.QUEUED
        self.running: dict[int, float] = {}
        self.group = -1
        self.seconds = 0.0
        self.counting = (0, 0)
        self.order = 0
        self.result: Any = None
        self.error: Exception | None = None
