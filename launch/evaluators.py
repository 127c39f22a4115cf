"""The evaluators of a job: started again when they die, waited for at the end, never a reason for the training to fail."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tfdist.cluster import Task

MAX_RESTARTS = 3
FIRST_DELAY_SECONDS = 1.0
"""Before the first restart; each further one waits twice as long."""

GRACE_SECONDS = 600.0
"""How long evaluators may take, when the training is done, for the checkpoints that are left."""


@dataclass
class _Evaluator:
    task: Task
    restarts: int = 0
    restart_at: float | None = None
    how_it_ended: str = ""
    ended: bool = False


class Evaluators:
    """What the supervisor does about them."""

    def __init__(self, tasks: tuple[Task, ...], start: Callable[[Task], None], say: Callable[[str], None]) -> None:
        """Prepares them.

        Args:
            tasks: the evaluator tasks.
            start: starts the process of one.
            say: prints a line of the launcher.
        """
        self._all = {task.name: _Evaluator(task) for task in tasks}
        self._start = start
        self._say = say
        self._stopped = False

    @property
    def names(self) -> set[str]:
        """`job:index` of each."""
        return set(self._all)

    @property
    def restarts(self) -> dict[str, int]:
        """How often each was started again."""
        return {name: evaluator.restarts for name, evaluator in self._all.items()}

    @property
    def running(self) -> list[str]:
        """Those that have neither finished nor failed for good."""
        return [name for name, evaluator in self._all.items() if not evaluator.ended]

    def start(self) -> None:
        """Starts all of them."""
        for evaluator in self._all.values():
            self._start(evaluator.task)

    def exited(self, name: str, code: int, how: str) -> None:
        """Takes notice that one has ended; plans its restart unless it has finished or failed too often."""
        evaluator = self._all[name]
        if code == 0 or self._stopped or evaluator.restarts == MAX_RESTARTS:
            evaluator.ended = True
            if code and not self._stopped:
                self._say(f"{name} has failed {MAX_RESTARTS + 1} times, at last {how}; the training goes on without it")
            return
        evaluator.restart_at = time.monotonic() + FIRST_DELAY_SECONDS * 2**evaluator.restarts
        evaluator.how_it_ended = how

    def tick(self) -> None:
        """Starts those again whose time has come."""
        for evaluator in self._all.values():
            if evaluator.restart_at is not None and time.monotonic() >= evaluator.restart_at:
                evaluator.restart_at = None
                evaluator.restarts += 1
                # Told only now: one that ended because the chief's program failed has not "ended early".
                name, how = evaluator.task.name, evaluator.how_it_ended
                self._say(f"{name} has ended early: {how}; the training goes on, and it is started again")
                self._start(evaluator.task)

    def stop(self) -> None:
        """From now on none is started again."""
        self._stopped = True
        for evaluator in self._all.values():
            evaluator.restart_at = None
