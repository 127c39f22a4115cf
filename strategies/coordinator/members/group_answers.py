"""`GroupAnswers`: asks worker groups for an answer, and leaves out those with a worker that is stopped or cut off."""

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence

from tfdist.cluster import Task
from tfdist.strategies.coordinator.members.cut_links import CutLinks
from tfdist.strategies.coordinator.members.disconnect import disconnect
from tfdist.strategies.coordinator.members.membership import Membership
from tfdist.strategies.coordinator.members.probe import PROBE_SECONDS, answering
from tfdist.strategies.coordinator.members.worker_groups import WorkerGroup
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.peers import waiting_for

_log = logging.getLogger("tfdist")


class GroupAnswers:
    """Asks the workers of groups for an answer, and leaves out the groups of those that give none.

    Args:
        groups: the worker groups.
        workers: the worker tasks, with addresses.
        membership: is told which groups are lost.
        links: as the attribute.
        servers: the ps tasks, with addresses.

    Attributes:
        links: the groups that are left out because of a link, although their workers answer.
    """

    def __init__(
        self,
        groups: Sequence[WorkerGroup],
        workers: Sequence[Task],
        membership: Membership,
        links: CutLinks,
        servers: Sequence[Task] = (),
    ) -> None:
        self.links = links
        self._servers = tuple(servers)
        self._tasks_of = {group.number: group.tasks for group in groups}
        self._workers = {task.index: task for task in workers}
        self._membership = membership

    def silent(self) -> list[Task]:
        """Returns the workers that do not answer within `PROBE_SECONDS`."""
        answers = answering(self._workers.values(), Deadline.after(PROBE_SECONDS))
        return [task for task in self._workers.values() if task not in answers]

    def is_any_complete(self, silent: Iterable[Task]) -> bool:
        """Returns whether all workers of some group answer, and reach what they need, if only `silent` do not answer."""
        indices, cut = {task.index for task in silent}, self.links.groups
        return any(indices.isdisjoint(tasks) for group, tasks in self._tasks_of.items() if group not in cut)

    def why_incomplete(self, silent: Sequence[Task]) -> str:
        """Returns what is wrong with the groups if none is complete."""
        found = [f"there is no answer from {waiting_for(silent)}"] if silent else []
        return "; ".join(filter(None, [*found, self.links.sentence()]))

    def silent_in(self, groups: Iterable[int], seconds: float, even_if_cut_off: bool = False) -> dict[int, list[Task]]:
        """Asks the workers of these groups for an answer. Returns those without one, by group.

        If no task of the cluster answers, this one is cut off itself, and the result is empty.

        Args:
            groups: the numbers of the groups.
            seconds: how long the workers have to answer.
            even_if_cut_off: whether to name the workers even if no task answers.
        """
        tasks_of = {group: [self._workers[index] for index in self._tasks_of[group]] for group in groups}
        asked = set(itertools.chain(*tasks_of.values()))
        answers = answering(asked, Deadline.after(seconds))
        if not answers and not even_if_cut_off and self._is_cut_off(asked, seconds):
            return {}
        silent = {group: [task for task in tasks if task not in answers] for group, tasks in tasks_of.items()}
        return {group: tasks for group, tasks in silent.items() if tasks}

    def leave_out(self, silent: Mapping[int, Sequence[Task]], level: int = logging.WARNING) -> None:
        """Notes that groups are lost, and ends the calls to those of their workers that do not answer."""
        for group, tasks in silent.items():
            _log.log(
                level,
                "no answer from %s: worker group %d is left out until it answers; if it was training on a batch, another "
                "group does it, and it counts twice if this one has trained on it",
                waiting_for(tasks),
                group,
            )
            self._membership.leave(group)
            for task in tasks:
                disconnect(task)

    def give_up(
        self, groups: Iterable[int], seconds: float = PROBE_SECONDS, level: int = logging.WARNING, even_if_cut_off: bool = False
    ) -> None:
        """Leaves out the groups with a worker that does not answer. See `silent_in` and `leave_out`.

        No group is lost if this task is cut off itself: they train on, and their results arrive when the link is back.
        """
        self.leave_out(self.silent_in(groups, seconds, even_if_cut_off), level)

    def _is_cut_off(self, silent: set[Task], seconds: float) -> bool:
        """Returns whether no other task answers either, if there is another one than the `silent` ones."""
        others = [task for task in (*self._servers, *self._workers.values()) if task not in silent]
        return bool(others) and not answering(others, Deadline.after(seconds), enough=1)
