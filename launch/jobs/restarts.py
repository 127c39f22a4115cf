"""Restarts of tasks without the whole job: evaluators, the workers of parameter_server and hogwild, and the ps of hogwild.

A task is restarted when it dies, or when a signal stopped it for too long.
"""

import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from tfdist.cluster import Task
from tfdist.launch.jobs.events import Exited, NotStarted, Stopped, Unreachable
from tfdist.launch.jobs.running_time import RunningTime
from tfdist.strategies.runtime.server import EXIT_CHIEF_FAILED

MAX_RESTARTS = 3
FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 1.0, 60.0
"""Delay after the first quick end of a task or a job; it doubles with each further one, up to the second number."""

STEADY_SECONDS = 10.0
"""A task or job that has run for this long is restarted at once, and the delay begins anew: it is for those that fail again and
again at their start."""

CHIEF_SECONDS = 8.0
"""Delay, at least, after an end because of the chief. If the chief's program has failed, its process ends meanwhile."""

WINDOW_SECONDS = 600.0
"""A task that has run for this long has all its restarts again."""

STOPPED_SECONDS = 60.0
"""How long a task may stay stopped by a signal. It answers no one, and other tasks may wait for it: it is then killed."""

STOPPED_PS_SECONDS = 30.0
"""The same for a task with parameters: all others wait for it, and give up after `lost_timeout.DEFAULT_SECONDS`."""


def is_steady(seconds: float, window: float) -> bool:
    """Returns whether an end after so many seconds is not a quick one: after `STEADY_SECONDS`, or a shorter window."""
    return seconds >= min(STEADY_SECONDS, window)


def delay_after(quick: int) -> float:
    """Returns the seconds before a restart after so many quick ends, one after the other."""
    return min(FIRST_DELAY_SECONDS * 2 ** (quick - 1), LONGEST_DELAY_SECONDS) if quick else 0.0


def may_run_longer(event: Exited) -> bool:
    """Returns whether a task may run longer next time: one that exits by itself may do it again.

    One that has not reached the chief for `lost_timeout.lost_seconds` may reach it again. SIGINT kills no Python program: it
    ends with an exit code.
    """
    return event.code < 0 or event.code in (EXIT_CHIEF_FAILED, 128 + signal.SIGINT) or isinstance(event, NotStarted)


GOES_ON = "the training continues"
"""What the training does while others replace a task that is gone."""


@dataclass
class _Restartable:
    task: Task
    limit: int
    is_awaited: bool = False
    has_served: bool = False  # The training has made a step since it started.
    restarts: int = 0
    used: int = 0  # Restarts since it last ran for the window.
    quick: int = 0  # Quick ends, one after the other.
    started_at: float = 0.0
    restart_at: float | None = None
    cause: str = ""
    unreached: int = 0  # Attempts, one after the other, that have not reached its host.
    ended: bool = False
    stopped_at: float | None = None  # None while it runs.

    @property
    def longest_stop(self) -> float:
        return STOPPED_PS_SECONDS if self.is_awaited else STOPPED_SECONDS


class Restarts:
    """Restarts some tasks of a job. Call `tick` several times a second."""

    def __init__(
        self,
        tasks: Iterable[Task],
        *,
        start: Callable[[Task], None],
        kill: Callable[[Task], None],
        say: Callable[[str], None],
        limits: Mapping[str, int] | None = None,
        window: float = WINDOW_SECONDS,
        meanwhile: str = GOES_ON,
        can_continue: Callable[[Collection[str]], bool] = lambda running: True,
        awaited: Collection[Task] = (),
    ) -> None:
        """Prepares the restarts.

        Args:
            tasks: the tasks to restart.
            start: starts the process of a task.
            kill: kills the process of a task.
            say: shows a line to the user.
            limits: restarts of each task, at most, until it has run for `window`, by job. Default: `MAX_RESTARTS`.
            window: seconds.
            meanwhile: what the training does until a task is back, for messages. For those in `awaited` it waits.
            can_continue: whether the training goes on if only these of the tasks are left.
            awaited: the tasks that all others wait for, because they hold parameters.
        """
        self._running_time, now = RunningTime(time.monotonic), time.monotonic()
        self._all = {
            task.name: _Restartable(task, (limits or {}).get(task.job, MAX_RESTARTS), task in awaited, started_at=now)
            for task in tasks
        }
        self._start = start
        self._kill = kill
        self._say = say
        self._over = False
        self._window = window
        self._meanwhile = meanwhile
        self._without = GOES_ON
        self._can_continue = can_continue

    @property
    def names(self) -> set[str]:
        """`job:index` of each task."""
        return set(self._all)

    @property
    def counts(self) -> dict[str, int]:
        """Number of restarts by task."""
        return {name: each.restarts for name, each in self._all.items()}

    @property
    def running(self) -> list[str]:
        """The tasks that neither finished nor failed for good."""
        return [name for name, each in self._all.items() if not each.ended]

    @property
    def can_continue(self) -> bool:
        """Whether the training goes on with the tasks that are `running`."""
        return self._can_continue(self.running)

    def exited(self, event: Exited) -> None:
        """Plans the restart of a task that exited, unless it finished or failed too often."""
        each = self._all[event.task]
        each.stopped_at = None
        seconds = time.monotonic() - each.started_at
        if seconds >= self._window:
            each.used = 0
        each.quick = 0 if is_steady(seconds, self._window) or (each.is_awaited and each.has_served) else each.quick + 1
        if self._is_out_of_reach(event):
            # Its host may be back in some minutes, and nobody waits for it: that costs no restart.
            each.unreached += 1
            each.used, each.restarts, each.quick = each.used - 1, each.restarts - 1, each.unreached
        else:
            each.unreached = 0
        if event.code == 0 or self._over or each.used >= each.limit:
            each.ended = True
            if event.code and not self._over:
                goes_on = self._without if self.can_continue else "the training cannot go on"
                self._say(
                    f"{event.task} failed {each.restarts + 1} times, most recently because {event.cause}; {goes_on} without it"
                    if each.limit
                    else f"{event.task} ended early: {event.cause}; {goes_on} without it"
                )
            return
        least = CHIEF_SECONDS if event.code == EXIT_CHIEF_FAILED else 0.0
        each.restart_at = time.monotonic() + max(delay_after(each.quick), least)
        each.cause = event.cause

    def _is_out_of_reach(self, event: Exited) -> bool:
        """Returns whether a task could not be started because its host is not reached, and the others train without it."""
        each = self._all[event.task]
        is_unreached = isinstance(event, Unreachable) and not event.had_started and each.used > 0
        others = [name for name in self.running if name != event.task]
        return is_unreached and not self._over and not each.is_awaited and self._can_continue(others)

    def advanced(self) -> None:
        """Notes that the training has made a step: the tasks that it waits for did not fail at their start."""
        for each in self._all.values():
            each.has_served = each.restart_at is None

    def training_is_done(self) -> None:
        """Notes that the training is done and that only these tasks still work, for messages."""
        self._meanwhile = self._without = "the training is done"

    def set_aside(self, name: str) -> None:
        """Ends the restarts of a task that is not wanted for now; ignores other tasks."""
        if name in self._all:
            each = self._all[name]
            each.ended, each.restart_at, each.stopped_at = True, None, None

    def take_back(self, name: str) -> None:
        """Begins again with a task that was set aside and is being started; ignores other tasks."""
        if name in self._all:
            each = self._all[name]
            each.ended, each.used, each.quick, each.started_at = False, 0, 0, time.monotonic()

    def stopped(self, event: Stopped) -> None:
        """Starts or ends the countdown of a task that a signal stopped or resumed; ignores other tasks."""
        if event.task not in self._all:
            return
        is_stopped = event.signal is not None and not self._over
        self._all[event.task].stopped_at = self._running_time() if is_stopped else None
        if is_stopped:
            limit = self._all[event.task].longest_stop
            self._say(f"{event.task} is killed and restarted unless it resumes within {limit:.0f} s")

    def tick(self) -> None:
        """Restarts tasks whose delay is over, and kills tasks that were stopped for too long."""
        now, running_now = time.monotonic(), self._running_time()
        up = [name for name in self.running if self._all[name].restart_at is None]
        for name, each in self._all.items():
            if each.restart_at is not None and now >= each.restart_at:
                each.restart_at = None
                each.restarts += 1
                each.used += 1
                each.started_at, each.has_served = now, False
                # Said only now: a task that ended because the chief's program failed did not end early.
                meanwhile = "the training waits for it" if each.is_awaited else self._meanwhile
                if meanwhile == GOES_ON and not self._can_continue(up):
                    meanwhile = "no worker group can train now, and the training waits for one"
                if not each.unreached:
                    self._say(f"{name} ended early: {each.cause}; {meanwhile}, and the task is restarted")
                elif each.unreached.bit_count() == 1:  # The first, second, 4th, 8th time.
                    self._say(f"{name}: {each.cause}; {meanwhile}, and its host is tried again, at least once a minute")
                self._start(each.task)
            if each.stopped_at is not None and running_now - each.stopped_at > each.longest_stop:
                each.stopped_at = None
                seconds = f"{each.longest_stop:.0f} s"
                self._say(f"{name} was stopped for {seconds}; it is killed, because other tasks may wait for it")
                self._kill(each.task)

    def stop(self) -> None:
        """Ends all restarts: from now on no task is started or killed."""
        self._over = True
        for each in self._all.values():
            each.restart_at = each.stopped_at = None
