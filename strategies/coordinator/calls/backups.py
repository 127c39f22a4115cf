"""`Backups`: gives up groups that do not answer, and lets another group do what they run.

These are the backup executions of MapReduce (Dean and Ghemawat, OSDI 2004, section 3.6). As with a worker that is killed, a
batch then counts twice if the first group has already trained on it, or still does so later; a warning names the workers.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Collection

from tfdist.strategies.coordinator.calls.execution import State
from tfdist.strategies.coordinator.calls.executions import Executions
from tfdist.strategies.coordinator.members.group_answers import GroupAnswers
from tfdist.strategies.coordinator.members.membership import Membership

POLL_SECONDS = 0.25
"""How often it looks for executions that take long: at the end of an epoch all groups wait for the last one."""

SILENT_SECONDS = 2.0
"""How long the worker of such an execution has to answer. One that is only busy answers within milliseconds."""

SHARE = 0.5
"""Once one execution takes long, the workers of those are asked too that have taken half as long: workers that stop together,
because their machine does, are lost together, not one `SILENT_SECONDS` after the other."""

IDLE_POLL_SECONDS, IDLE_SILENT_SECONDS = 5.0, 10.0
"""The same for groups that run nothing."""


LINK_SHARE, LINK_TIMES = 1 / 6, 10.0
"""Workers that answer are asked whether they reach the ps if an execution takes longer than this share of `lost_seconds`, and
than this many times the usual duration. They have half of `lost_seconds` for it."""


class Backups:
    """Looks after the executions of one strategy."""

    def __init__(self, executions: Executions, answers: GroupAnswers, membership: Membership, lost_seconds: float) -> None:
        self._executions = executions
        self._answers = answers
        self._membership = membership
        self._lost_seconds = lost_seconds

    def start(self) -> None:
        """Looks as long as this object exists, in threads: a worker that is stopped blocks the others."""
        for look, seconds in ((Backups.back_up, POLL_SECONDS), (Backups.give_up_idle, IDLE_POLL_SECONDS)):
            arguments = (weakref.ref(self), look, seconds)
            threading.Thread(target=_watch, args=arguments, name="tfdist-backups", daemon=True).start()

    def back_up(self) -> None:
        """Gives up groups that run something for long and do not answer, and schedules that again."""
        if not self._executions.late():
            return
        if len(self._membership.owners) == 1:
            self._look_at_links()
            return  # A single group is waited for: it stays exact.
        late = self._executions.late(SHARE)
        silent = self._answers.silent_in({group for each in late for group in list(each.running)}, SILENT_SECONDS)
        if any(e.state is State.QUEUED for e in self._executions.in_flight()):
            return  # Other groups do that first. Meanwhile the worker may be back, and then no batch counts twice.
        self._answers.leave_out(silent)
        self._look_at_links(silent)
        for execution in late:
            self._executions.back_up(execution)

    def _look_at_links(self, silent: Collection[int] = ()) -> None:
        """Asks the workers of groups that run something for very long, but for the `silent` ones, whether they reach the ps."""
        stuck = self._executions.late(seconds=LINK_SHARE * self._lost_seconds, times=LINK_TIMES)
        for group in {group for each in stuck for group in list(each.running)}.difference(silent):
            if self._membership.is_live(group):
                self._answers.links.look(group, self._lost_seconds / 2)

    def give_up_idle(self) -> None:
        """Gives up live groups that run nothing and do not answer: the chief's next new function would wait for them."""
        busy = {group for execution in self._executions.in_flight() for group in list(execution.running)}
        idle = [group for group in range(len(self._membership.owners)) if group not in busy and self._membership.is_live(group)]
        if idle:
            self._answers.give_up(idle, IDLE_SILENT_SECONDS, logging.DEBUG)  # So it is at the end of the program, too.


def _watch(reference: "weakref.ref[Backups]", look: Callable[[Backups], None], seconds: float) -> None:
    while (backups := reference()) is not None:
        look(backups)
        del backups
        time.sleep(seconds)
