"""Tasks that the others can do without for a while: started again when they die, or when they are stopped for too long.

Evaluators are such tasks, and workers under hogwild: the training goes on, and a task that is back joins in.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tfdist.cluster import Task

MAX_RESTARTS = 3
FIRST_DELAY_SECONDS = 1.0
"""Before the first restart; each further one waits twice as long."""

STOPPED_SECONDS = 60.0
"""A task that a signal has stopped for so long is killed and started again: it answers nobody, and others may wait for it."""

LONGEST_TICK_SECONDS = 1.0
"""What passes beyond this between two looks at the clock does not count: then this process, too, was stopped."""


@dataclass
class _Restartable:
    task: Task
    restarts: int = 0
    restart_at: float | None = None
    how_it_ended: str = ""
    ended: bool = False
    stopped_for: float | None = None  # None while it runs.


class Restarts:
    """Those of some tasks."""

    def __init__(
        self,
        tasks: Iterable[Task],
        *,
        start: Callable[[Task], None],
        kill: Callable[[Task], None],
        say: Callable[[str], None],
    ) -> None:
        """Prepares them.

        Args:
            tasks: the tasks.
            start: starts the process of one.
            kill: kills the process of one.
            say: prints a line of the launcher.
        """
        self._all = {task.name: _Restartable(task) for task in tasks}
        self._start = start
        self._kill = kill
        self._say = say
        self._over = False
        self._looked = time.monotonic()

    @property
    def names(self) -> set[str]:
        """`job:index` of each."""
        return set(self._all)

    @property
    def counts(self) -> dict[str, int]:
        """How often each was started again."""
        return {name: each.restarts for name, each in self._all.items()}

    @property
    def running(self) -> list[str]:
        """Those that have neither finished nor failed for good."""
        return [name for name, each in self._all.items() if not each.ended]

    def exited(self, name: str, code: int, how: str) -> None:
        """Takes notice that one has ended; plans its restart unless it has finished or failed too often."""
        each = self._all[name]
        each.stopped_for = None
        if code == 0 or self._over or each.restarts == MAX_RESTARTS:
            each.ended = True
            if code and not self._over:
                self._say(f"{name} has failed {MAX_RESTARTS + 1} times, at last {how}; the training goes on without it")
            return
        each.restart_at = time.monotonic() + FIRST_DELAY_SECONDS * 2**each.restarts
        each.how_it_ended = how

    def stopped(self, name: str, is_stopped: bool) -> None:
        """Takes notice that a signal has stopped one, or that it goes on."""
        is_stopped = is_stopped and not self._over
        self._all[name].stopped_for = 0.0 if is_stopped else None
        if is_stopped:
            self._say(f"unless it goes on within {STOPPED_SECONDS:.0f} s, {name} is killed and started again")

    def tick(self) -> None:
        """Starts those again whose time has come, and kills those that have been stopped for too long."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, LONGEST_TICK_SECONDS), now
        for name, each in self._all.items():
            if each.restart_at is not None and now >= each.restart_at:
                each.restart_at = None
                each.restarts += 1
                # Told only now: one that ended because the chief's program failed has not "ended early".
                self._say(f"{name} has ended early: {each.how_it_ended}; the training goes on, and it is started again")
                self._start(each.task)
            if each.stopped_for is not None:
                each.stopped_for += passed
                if each.stopped_for > STOPPED_SECONDS:
                    each.stopped_for = None
                    self._say(f"{name} has been stopped for {STOPPED_SECONDS:.0f} s; it is killed, so that nobody waits for it")
                    self._kill(each.task)

    def stop(self) -> None:
        """From now on none is started again or killed."""
        self._over = True
        for each in self._all.values():
            each.restart_at = each.stopped_for = None
