"""`FaultInjector`: kills and stops tasks on purpose, to see whether a job survives it (`--fail_at`).

It counts the steps of the task that reports, which that task writes into a file beside its report. What was done stays done
when the whole job is started again.
"""

import math
import random
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tfdist.errors import nearest
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.progress import STEPS_SUFFIX

COUNT_STEPS = "TFDIST_COUNT_STEPS"
"""The variable that makes the task that reports write its steps (strategies/runtime/run_summary.py)."""

Send = Callable[[list[str], int], None]
Say = Callable[[str], None]

_FORM = (
    "expected TASK[+TASK...],step=N or TASK,after=SECONDS, then how=kill, how=term or how=stop:SECONDS; or "
    "random,every=SECONDS[,of=JOB][,seed=N][,how=...]"
)


@dataclass(frozen=True)
class Fault:
    """What happens to tasks, and when.

    Attributes:
        tasks: `job:index` of each; for a random fault the tasks from which one is drawn.
        how: `kill` (SIGKILL), `term` (SIGTERM) or `stop` (SIGSTOP).
        step: after how many steps of the task that reports, in its current process; None for none.
        after: after how many seconds; None for none.
        every: the seconds between two random faults; None for a fault that happens once.
        seconds: how long a stopped task stays so.
        seed: of the random draws.
    """

    tasks: tuple[str, ...]
    how: str = "kill"
    step: int | None = None
    after: float | None = None
    every: float | None = None
    seconds: float = 0.0
    seed: int = 0

    def is_due(self, steps: int, seconds: float) -> bool:
        """Returns whether its time has come."""
        return steps >= self.step if self.step is not None else self.after is not None and seconds >= self.after


def fault(text: str, tasks: Iterable[str]) -> Fault:
    """Returns the fault that `--fail_at` describes: `worker:1,step=30,how=stop:20`, `random,every=15,of=worker,seed=1`.

    Raises:
        UsageError: for a text of another form, or an unknown task.
    """
    known = list(tasks)
    names, *words = text.split(",")
    values = dict(word.partition("=")[::2] for word in words)
    try:
        if len(values) < len(words):  # A word is there twice.
            raise ValueError
        how, _, seconds = values.pop("how", "kill").partition(":")
        if how not in ("kill", "term", "stop") or (how == "stop") != bool(seconds):
            raise ValueError
        stopped = _positive(seconds) if how == "stop" else 0.0
        parsed = _random_fault(values, known, how, stopped) if names == "random" else _single_fault(names, values, how, stopped)
        if values or not parsed.tasks:
            raise ValueError
    except (ValueError, KeyError) as error:
        raise UsageError(f"--fail_at {text}: {_FORM}") from error
    for name in parsed.tasks:
        if name not in known:
            raise UsageError(f"--fail_at {text}: there is no task {name}{nearest(name, known)}")
    return parsed


def _random_fault(values: dict[str, str], known: Iterable[str], how: str, seconds: float) -> Fault:
    """Takes what describes faults at random moments from `values`. Raises ValueError or KeyError for another form."""
    job = values.pop("of", "")
    tasks = tuple(name for name in known if not job or name.startswith(f"{job}:"))
    return Fault(tasks, how, every=_positive(values.pop("every")), seconds=seconds, seed=int(values.pop("seed", 0)))


def _single_fault(names: str, values: dict[str, str], how: str, seconds: float) -> Fault:
    """Takes what describes a fault at a step or moment from `values`. Raises ValueError or KeyError for another form."""
    tasks = tuple(names.split("+"))
    if "step" in values:
        step = int(values.pop("step"))
        if step < 0:
            raise ValueError
        return Fault(tasks, how, step=step, seconds=seconds)
    after = float(values.pop("after"))
    if not 0.0 <= after < math.inf:
        raise ValueError
    return Fault(tasks, how, after=after, seconds=seconds)


def _positive(text: str) -> float:
    """Returns the number in a text. Raises ValueError if it is not more than 0 and finite."""
    number = float(text)
    if not 0.0 < number < math.inf:
        raise ValueError
    return number


class FaultInjector:
    """Makes the faults of a job happen. Call `tick` several times a second."""

    def __init__(self, faults: Iterable[Fault], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin: float | None = None
        self._pending = [each for each in faults if each.every is None]
        self._random = [(each, random.Random(each.seed), [0.0]) for each in faults if each.every is not None]
        self._stopped: list[tuple[float, str]] = []  # When they go on, and their names.

    def say_pending(self, say: Say) -> None:
        """Says at the end of a job which faults have not happened: nobody should take it for one that has survived them."""
        why = "" if self._begin is not None else ": no step of a `fit` was seen"
        for each in [*self._pending, *(fault for fault, _, _ in self._random if self._begin is None)]:
            when = (
                f"every={each.every:g}" if each.every else f"after={each.after:g}" if each.step is None else f"step={each.step}"
            )
            say(f"--fail_at {'random' if each.every else '+'.join(each.tasks)},{when} has not happened{why}")

    def tick(self, report: Path, alive: Iterable[str], send: Send, say: Say) -> None:
        """Makes those faults happen whose time has come. `report` is the file of the report of the current attempt."""
        now = self._clock()
        steps = _steps(report)
        if self._begin is None and steps > 0:
            self._begin = now
            for fault, _, next_at in self._random:
                next_at[0] = now + (fault.every or 0.0)
        if self._begin is not None:
            seconds = now - self._begin
            for fault in [fault for fault in self._pending if fault.is_due(steps, seconds)]:
                self._pending.remove(fault)
                self._fail(fault, fault.tasks, now, send, say)
            for fault, chance, next_at in self._random:
                if fault.every is not None and now >= next_at[0]:
                    # Those that were due while nobody looked, as before a restart, do not happen all at once.
                    next_at[0] = (now if now >= next_at[0] + fault.every else next_at[0]) + fault.every
                    candidates = sorted(set(fault.tasks) & set(alive) - {name for _, name in self._stopped})
                    if candidates:
                        self._fail(fault, (chance.choice(candidates),), now, send, say)
        for stopped in [entry for entry in self._stopped if now >= entry[0]]:
            self._stopped.remove(stopped)
            send([stopped[1]], signal.SIGCONT)

    def _fail(self, fault: Fault, names: tuple[str, ...], now: float, send: Send, say: Say) -> None:
        number = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}[fault.how]
        until = f" for {fault.seconds:g} s" if fault.how == "stop" else ""
        say(f"--fail_at sends {number.name} to {', '.join(names)}{until}")
        send(list(names), number)
        if fault.how == "stop":
            self._stopped += [(now + fault.seconds, name) for name in names]


def _steps(report: Path) -> int:
    """Returns the steps of the current attempt; 0 before the first."""
    try:
        return int(Path(f"{report}{STEPS_SUFFIX}").read_text() or 0)
    except (OSError, ValueError):
        return 0
