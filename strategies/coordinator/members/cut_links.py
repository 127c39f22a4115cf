"""`CutLinks`: worker groups whose links are cut, although this task reaches both ends.

A worker may not reach a ps, or another worker of its group, that the chief reaches. TensorFlow's coordinator takes such a ps
for lost, which ends the training. Here the worker's group is left out until the link is back.
"""

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster import Task
from tfdist.strategies.coordinator.members.membership import Membership
from tfdist.strategies.coordinator.members.probe import PROBE_SECONDS, answering
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.peers import waiting_for
from tfdist.strategies.runtime.task_address import device_of

POLL_SECONDS = 2.0
"""How often a worker is asked whether its link is back."""

PASSING, PASSING_SECONDS = 3, 300.0
"""After so many errors of a group in that time, each with its links there at once, the next one is TensorFlow's to judge."""

_NAMED = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")

_log = logging.getLogger("tfdist")


class CutLinks:
    """The worker groups that are left out because of a cut link. Any thread may ask.

    Args:
        groups: the worker groups.
        workers: the worker tasks, with addresses.
        servers: the tasks that hold parameters, with addresses.
        membership: is told which groups are lost.
    """

    def __init__(self, groups: Sequence[Any], workers: Sequence[Task], servers: Sequence[Task], membership: Membership) -> None:
        tasks = {task.index: task for task in workers}
        self._members = {group.number: [tasks[index] for index in group.tasks] for group in groups}
        self._group_of = {group.devices[0]: group.number for group in groups}
        self._servers = tuple(servers)
        self._membership = membership
        self._cut: dict[int, tuple[str, float]] = {}  # By group: a sentence, and since when the link is silent.
        self._probes: dict[int, _Probe] = {}
        self._passing: dict[int, list[float]] = {number: [] for number in self._members}  # When those errors came.

    @property
    def groups(self) -> frozenset[int]:
        """The groups that are left out, or the only one, which is waited for."""
        return frozenset(self._cut)

    def seconds_cut(self) -> float:
        """Returns for how long a link of each group has been silent; 0.0 if some group has none that is cut."""
        cut = dict(self._cut)
        return time.monotonic() - max(since for _, since in cut.values()) if len(cut) == len(self._members) else 0.0

    def sentence(self) -> str:
        """Returns which workers do not reach which tasks; empty if none is left out."""
        return "; ".join(dict.fromkeys(sentence for sentence, _ in self._cut.values()))

    def leave_out(self, error: Exception, device: str) -> bool:
        """Leaves out the group with this leader if the error of its call is that of a cut link. Returns whether it did."""
        group = self._group_of.get(device)
        if group is None or not isinstance(error, tf.errors.UnavailableError):
            return False
        if group in self._cut and _do_answer(self._needed(group)):  # `look` has found it before.
            return True
        self._passing[group] = [moment for moment in self._passing[group] if moment > time.monotonic() - PASSING_SECONDS]
        if len(self._passing[group]) >= PASSING:
            return False
        names = {f"{job}:{index}" for job, index in _NAMED.findall(str(error))}
        named = [task for task in self._needed(group) if task.name in names]
        if len(named) < 2 or not _do_answer(self._needed(group)) or self._values(group) is None:
            return False  # A task is gone, or has been restarted.
        self._note(group, named, time.monotonic())
        self._membership.leave(group)
        return True

    def _note(self, group: int, tasks: Sequence[Task], since: float) -> None:
        ends = " and ".join(waiting_for([task]) for task in tasks)
        sentence = f"the link between {ends} is cut, although they answer this task"
        self._cut[group] = sentence, since
        is_only = len(self._members) == 1
        _log.warning("%s; %s until it is back", sentence, "training waits" if is_only else f"worker group {group} is left out")

    def look(self, group: int, seconds: float) -> None:
        """Leaves out a group whose call takes very long, if one of its links is cut. Call it again and again.

        By itself the call fails only when TCP gives the link up, after twice `lost_timeout`, and gRPC tries again 20 s later.
        The other groups would wait for it at the end of an epoch. So its workers are asked for small values of the tasks that
        they need. A group that is the only one is not left out: if the link is back in time, its call goes on.

        Args:
            group: the number of the group.
            seconds: how long a value may take. It may wait behind parameters on a slow link.
        """
        probe = self._probes.setdefault(group, _Probe(self._members[group], self._needed(group)))
        if probe.is_over:
            del self._probes[group]  # It begins anew with the next call.
        elif (
            group not in self._cut
            and (link := probe.silent_link(seconds)) is not None
            and _do_answer(self._needed(group))
            and not probe.is_over
        ):
            self._note(group, link, probe.begun)
            if len(self._members) > 1:
                self._membership.leave(group)
            probe.when_over(lambda: self._cut.pop(group, None))

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
        self._cut.pop(group, None)

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


class _Probe:
    """Lets each worker of a group get a value from each task that it needs, in threads: a call over a cut link may hang.

    Args:
        workers: the workers.
        needed: the tasks that they need, the workers themselves among them.

    Attributes:
        begun: the moment when they were asked; infinite before.
    """

    def __init__(self, workers: Sequence[Task], needed: Sequence[Task]) -> None:
        self._links = [(worker, task) for worker in workers for task in needed]
        self._waiting: set[tuple[Task, Task]] = set()
        self.begun = math.inf
        self._when_over: Callable[[], object] = lambda: None
        self._has_all = False  # Whether all values have arrived.

    @property
    def is_over(self) -> bool:
        """Whether all values have arrived, or calls have failed."""
        return self.begun < math.inf and not self._waiting

    def silent_link(self, seconds: float) -> tuple[Task, Task] | None:
        """Returns the tasks of a link over which no value has come in that time. Begins to ask with the first call.

        Returns:
            None if there is none, or if a worker does not even get its own value: it is busy.
        """
        if self.begun == math.inf:
            self.begun = time.monotonic()
            self._waiting.update(self._links)
            for link in self._links:
                threading.Thread(target=self._ask, args=link, name="tfdist-links", daemon=True).start()
        waiting = set(self._waiting)
        if time.monotonic() - self.begun < seconds or any(worker is task for worker, task in waiting):
            return None
        return min(waiting, key=self._links.index, default=None)

    def when_over(self, function: Callable[[], object]) -> None:
        """Calls a function when all values have arrived, or now if they have."""
        self._when_over = function
        if self._has_all:
            function()

    def _ask(self, worker: Task, task: Task) -> None:
        reached = False
        try:
            reached = _reaches(worker, _value_on(task))
        except tf.errors.OpError:
            pass  # The call of the group fails, too.
        finally:
            self._waiting.discard((worker, task))
            if reached and not self._waiting:
                self._has_all = True
                self._when_over()


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
