"""`FirstFailure`: finds the failure that caused the others, and thus why a job failed."""

import signal
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from tfdist.launch.jobs.events import Exited, Stopped
from tfdist.launch.jobs.job import Job
from tfdist.launch.jobs.progress import read as read_progress
from tfdist.launch.jobs.restarts import CHIEF_SECONDS
from tfdist.launch.jobs.running_time import RunningTime
from tfdist.strategies.runtime.server import EXIT_CHIEF_FAILED

END_SECONDS = 15.0
"""How long the process of the chief may take to end after its program, if a server is lost meanwhile. Telling a server of the
end takes 5 s if its host is gone (strategies/runtime/shutdown.py)."""


@dataclass(frozen=True)
class Failure:
    """Why a job failed.

    Attributes:
        reason: a sentence.
        exit_code: exit code of the launcher.
        task: name of the task that caused it, or None.
        log: a file that tells more where no task caused it, or None.
        may_pass: whether the job may succeed if all tasks are started again.
        is_host_away: whether no task was started because nothing on a host answers, which may be starting.
    """

    reason: str
    exit_code: int
    task: str | None = None
    log: Path | None = None
    may_pass: bool = False
    is_host_away: bool = False


def ended_by(number: int) -> Failure:
    """Returns why a job failed that the user has ended with a signal."""
    return Failure(f"ended by {signal.Signals(number).name}", 128 + number)


def unless_signaled(failure: Failure | None, signals: Sequence[int]) -> Failure | None:
    """Returns the end by the user's first signal in place of a failure after which all tasks would be started again."""
    return ended_by(signals[0]) if signals and failure is not None and failure.may_pass else failure


def is_by_user(failure: Failure | None) -> bool:
    """Returns whether a job that received a signal ended because of that: no task had failed."""
    return failure is not None and failure.task is None


def left_fit(reporter: str, report: Path) -> Failure | None:
    """Returns the failure of a task that ended with 0 inside of `fit`; None if it has left `fit`, or never called it.

    What ends a process at once with 0, as `os._exit(0)` and `exit` of a library do, looks like the end of a program.
    """
    progress = read_progress(report)
    if progress is None or progress.phase == "idle":
        return None
    reason = (
        f"{reporter} ended with 0 in the middle of `fit`, in epoch {progress.epoch} of {progress.epochs}: something ended its "
        "process before its program had ended, such as os._exit(0)"
    )
    return Failure(reason, 1, reporter, may_pass=True)


class FirstFailure:
    """The failure that came first and does not follow from another."""

    def __init__(
        self,
        job: Job,
        exits: Mapping[str, int],
        clock: Callable[[], float] | None = None,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begins without a failure. `has_ended` says whether the program of the task that reports has finished."""
        self._clock = clock or RunningTime()
        self._has_ended = has_ended
        self._exits = exits
        self._stopped: dict[str, Stopped] = {}
        self._training = {task.name for task in job.training}
        self._reporter = job.reporter.name
        self._suspect: tuple[float, Failure] | None = None  # When it counts, and the failure.

    def stopped(self, event: Stopped) -> None:
        """Notes that a signal stopped a task, or that it resumed: others may fail because it does not answer."""
        if event.signal is None:
            self._stopped.pop(event.task, None)
        else:
            self._stopped[event.task] = event

    def last_stopped(self) -> set[str]:
        """Returns the stopped tasks if all others that train have ended: nobody is left that would give them up."""
        ended = self._training & self._exits.keys()
        stopped = (self._training & self._stopped.keys()) - ended
        return stopped if ended and ended | stopped == self._training else set()

    def exited(self, event: Exited, servers: Set[str], no_task_served: bool) -> None:
        """Judges the exit of a task. `servers` are the serving tasks that must run as long as the chief."""
        is_training = event.task in self._training
        if is_training and event.code == 0:
            return
        if event.code == 0 and all(self._exits.get(name) == 0 for name in servers) and not no_task_served:
            if self._suspect and self._suspect[1].task in servers:
                self._suspect = None  # The chief has ended all servers; its own process ends later.
            return
        now = self._clock()
        if not is_training and event.code in (0, EXIT_CHIEF_FAILED):
            # A server ends when the chief's program has ended, which is shortly before the chief's process ends.
            reason, cause = f"{event.task} ended by itself while the chief was still running", event.task
            if event.code == EXIT_CHIEF_FAILED:  # Its process may take long to end, as with threads of its own.
                cause = self._reporter
                reason = f"the program of {cause} has failed, or gives no answer: {event.task} has ended, {cause} still runs"
            self._suspect_from(now + CHIEF_SECONDS, Failure(reason, event.code or 1, cause, may_pass=True))
        else:
            finished = [name for name, code in self._exits.items() if code == 0 and name in self._training]
            before = f"; {', '.join(finished)} had ended with 0 before" if finished else ""
            reason = f"{event.task} failed first: {event.cause}{before}"
            silent = [each for each in self._stopped.values() if each.task != event.task]
            if silent and event.code > 0:
                names = ", ".join(f"{each.task} was stopped by {each.signal_name}" for each in silent)
                reason = f"{names}, and {event.task} could not go on without it: {event.cause}{before}"
            code = event.code if event.code >= 0 else 128 - event.code
            is_needed = is_training or not self._has_ended()  # Else the process of the chief is about to end with 0.
            # Exit code 2 is that of a bad description or command line, which stays bad.
            self._suspect_from(now if is_needed else now + END_SECONDS, Failure(reason, code, event.task, may_pass=code != 2))

    def report(self, failure: Failure) -> None:
        """Records a failure that precedes all others."""
        self._suspect = (0.0, failure)

    def get(self) -> Failure | None:
        """Returns the first failure; None while there is none, or an earlier cause may still show up."""
        if self._suspect is None or self._clock() < self._suspect[0]:
            return None
        return self._suspect[1]

    def _suspect_from(self, when: float, failure: Failure) -> None:
        if self._suspect is None or when < self._suspect[0]:
            self._suspect = (when, failure)
