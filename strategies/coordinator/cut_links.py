"""`CutLinks`: worker groups with a worker that does not reach a ps, or another one of its group, while this task reaches both.

TensorFlow takes such a ps for lost, which ends the training. Here the group is left out until the link is back.
"""

import logging
import re
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster import Task
from tfdist.strategies.coordinator.membership import Membership
from tfdist.strategies.coordinator.probe import PROBE_SECONDS, answering
from tfdist.strategies.coordinator.server_recovery import device_of
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.peers import waiting_for

POLL_SECONDS = 2.0
"""How often a worker is asked whether its link is back."""

PASSING, PASSING_SECONDS = 3, 300.0
"""After so many errors of a group in that time, each with its links there at once, the next one is TensorFlow's to judge."""

_NAMED = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")

_log = logging.getLogger("tfdist")


class CutLinks:
    """Knows which groups are left out because of a link. Any thread may ask.

    Args:
        groups: the worker groups.
        workers: the worker tasks, with addresses.
        servers: the tasks that hold parameters, with addresses.
        membership: notes which groups are lost.
    """

    def __init__(self, groups: Sequence[Any], workers: Sequence[Task], servers: Sequence[Task], membership: Membership) -> None:
        tasks = {task.index: task for task in workers}
        self._members = {group.number: [tasks[index] for index in group.tasks] for group in groups}
        self._group_of = {group.devices[0]: group.number for group in groups}
        self._servers = tuple(servers)
        self._membership = membership
        self._found: dict[int, str] = {}
        self._passing: dict[int, list[float]] = {number: [] for number in self._members}  # When those errors came.

    @property
    def groups(self) -> frozenset[int]:
        """The groups that are left out."""
        return frozenset(self._found)

    def sentence(self) -> str:
        """Returns which workers do not reach which tasks; empty if none is left out."""
        return "; ".join(dict.fromkeys(self._found.values()))

    def leave_out(self, error: Exception, device: str) -> bool:
        """Leaves out the group with this leader if the error of its call is that of a cut link. Returns whether it did.

        Args:
            error: what a call to the group raised.
            device: the device of the leader of the group.
        """
        group = self._group_of.get(device)
        if group is None or not isinstance(error, tf.errors.UnavailableError):
            return False
        self._passing[group] = [moment for moment in self._passing[group] if moment > time.monotonic() - PASSING_SECONDS]
        if len(self._passing[group]) >= PASSING:
            return False
        names = {f"{job}:{index}" for job, index in _NAMED.findall(str(error))}
        named = [task for task in self._needed(group) if task.name in names]
        if len(named) < 2 or not _do_answer(self._needed(group)) or self._values(group) is None:
            return False  # A task is gone, or has been restarted.
        found = f"the link between {' and '.join(waiting_for([task]) for task in named)} is cut, although they answer this task"
        self._found[group] = found
        _log.warning("%s; worker group %d is left out until it is back", found, group)
        self._membership.leave(group)
        return True

    def wait(self, device: str, is_over: Callable[[], bool]) -> None:
        """Waits in the thread of a group that is left out until its links are back, or a worker of it is gone.

        Args:
            device: the device of the leader of the group.
            is_over: whether nobody needs the group any more.
        """
        group = self._group_of[device]
        self._passing[group].append(time.monotonic())
        while not is_over() and _do_answer(self._members[group]) and self._is_cut(group):
            self._passing[group].clear()
            time.sleep(POLL_SECONDS)
        del self._found[group]

    def _needed(self, group: int) -> list[Task]:
        """Returns the tasks of a group, and the tasks with parameters."""
        return list(dict.fromkeys((*self._members[group], *self._servers)))

    def _values(self, group: int) -> dict[Task, tf.Tensor] | None:
        """Returns a value on each task that a group needs; None if one is gone or has been restarted."""
        try:
            return {task: _value_on(task) for task in self._needed(group)}
        except tf.errors.OpError:
            return None

    def _is_cut(self, group: int) -> bool:
        """Returns whether a worker of a group does not reach what it needs, while this task reaches both."""
        values = self._values(group)
        return values is not None and not all(
            _reaches(worker, value) for worker in self._members[group] for value in values.values()
        )


def _do_answer(tasks: Collection[Task]) -> bool:
    return len(answering(tasks, Deadline.after(PROBE_SECONDS))) == len(tasks)


def _value_on(task: Task) -> tf.Tensor:
    with tf.device(device_of(task)):
        return tf.timestamp()


def _reaches(worker: Task, value: tf.Tensor) -> bool:
    try:
        with tf.device(device_of(worker)):  # It gets the value from the task that has it, not by way of this one.
            tf.identity(value).numpy()
    except tf.errors.OpError:
        return False
    return True
