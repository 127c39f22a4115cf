"""What only some strategies of tfdist have, for code that serves all of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol


class CallsOfTasks(Protocol):
    """The calls that all tasks of a job make alike, as `SameCalls` of multi_worker_mirrored follows them."""

    def executing(self) -> AbstractContextManager[None]:
        """Surrounds what all tasks execute together. A task that is lost meanwhile is found and named."""

    def watch_chief(self) -> Callable[[], Exception | None]:
        """Begins to watch the chief; what it returns returns an error if the chief is lost."""

    def await_ends(self) -> list[str]:
        """Waits for the ends of the others' programs; returns the tasks whose programs have not ended well."""


def calls_of(strategy: Any) -> CallsOfTasks | None:
    """Returns the calls that the tasks of a strategy make alike; None if one task alone makes all calls."""
    calls: CallsOfTasks | None = getattr(strategy, "calls", None)
    return calls


def group_count(strategy: Any) -> int:
    """Returns how many worker groups compute steps independently of each other; 1 under strategies that have no groups."""
    return max(1, len(getattr(strategy, "worker_groups", ())))
