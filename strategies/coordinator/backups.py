"""`Backups`: gives up groups that do not answer, and lets another group do what they run.

These are the backup executions of MapReduce (Dean and Ghemawat, OSDI 2004, section 3.6). As with a worker that is killed, a
batch then counts twice if the first group has already trained on it, or still does so later; a warning names the workers.
"""

import logging
import threading
import time
import weakref

from tfdist.strategies.coordinator.execution import State
from tfdist.strategies.coordinator.executions import BACKUP_SECONDS, Executions
from tfdist.strategies.coordinator.group_answers import GroupAnswers
from tfdist.strategies.coordinator.membership import Membership

POLL_SECONDS = 5.0
"""How often it looks for groups that do not answer."""


class Backups:
    """Looks after the executions of one strategy.

    Args:
        executions: the executions.
        answers: asks groups for an answer.
        membership: which groups are live.
    """

    def __init__(self, executions: Executions, answers: GroupAnswers, membership: Membership) -> None:
        self._executions = executions
        self._answers = answers
        self._membership = membership

    def start(self) -> None:
        """Looks every `POLL_SECONDS` as long as this object exists, in a thread: a worker that is stopped blocks the others."""
        threading.Thread(target=_watch, args=(weakref.ref(self),), name="tfdist-backups", daemon=True).start()

    def look(self) -> None:
        """Gives up groups that do not answer, and schedules again what they run."""
        self._back_up()
        self._give_up_idle()

    def _back_up(self) -> None:
        if len(self._membership.owners) == 1 or any(e.state is State.QUEUED for e in self._executions.in_flight()):
            return  # A single group is waited for: it stays exact. What waits for a group gets one first.
        for execution in self._executions.late():
            self._answers.give_up(list(execution.running))
            self._executions.back_up(execution)

    def _give_up_idle(self) -> None:
        """Gives up live groups that run nothing and do not answer: the chief's next new function would wait for them."""
        busy = {group for execution in self._executions.in_flight() for group in list(execution.running)}
        idle = [group for group in range(len(self._membership.owners)) if group not in busy and self._membership.is_live(group)]
        if idle:
            self._answers.give_up(idle, BACKUP_SECONDS, logging.DEBUG)  # So it is at the end of the program, too.


def _watch(reference: "weakref.ref[Backups]") -> None:
    while (backups := reference()) is not None:
        backups.look()
        del backups
        time.sleep(POLL_SECONDS)
