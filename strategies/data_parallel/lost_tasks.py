"""Finds out which task the others have lost, when a collective fails.

TensorFlow's error names a task that did not take part in time, but not always the lost one: the first task names another one
where its own link is cut, and the others say only that a deadline is over. So each task looks at what it reaches itself.

TensorFlow may also take `lost_timeout` and more to raise an error. In a ring of collectives a task that has to send waits until
the next one fetches the data. If that one is dead, no call is open that could fail; only the heartbeats are missed. So:

* a task that is long in an execution looks whether the next one is still there, and if not ends the execution of all;
* the first task tells the others;
* all look whether the first task is there, because without it nobody tells them.
"""

import contextlib
import enum
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tfdist.cluster import Task
from tfdist.strategies.private_api.error_report import abort_collectives, keep_context
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.lost_timeout import lost_seconds
from tfdist.strategies.runtime.peers import in_parallel, waiting_for
from tfdist.strategies.runtime.server_identity import hello
from tfdist.strategies.runtime.task_address import connect

LOOK_SECONDS = 4.0
"""How long a task looks for the one that is lost. Tasks that end because of it are still there at first."""

ANSWER_SECONDS = 2.0
"""How long one look at a task may take."""

PAUSE_SECONDS = 0.2
"""Between two looks."""

CLOSED_LOOKS = 2
"""After so many looks in sequence a task without a server counts as dead."""

LOSSES = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.FailedPreconditionError,
)
"""What TensorFlow may raise where another task is gone. Where none is, the error stays as it is."""

_NAMED = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")
_TOLD = re.compile(rf"Error reported from {_NAMED.pattern}: no answer for \d+ s at the address of {_NAMED.pattern} ")
"""What the first task tells of a task that gets no answer from another (`_Watched.lost`)."""

_log = logging.getLogger("tfdist")


class Reach(enum.Enum):
    """What a task finds at the address of another."""

    SERVES = enum.auto()
    """A server answers."""
    CLOSED = enum.auto()
    """The machine answers, and no server: the task has ended, or is being started again."""
    MUTE = enum.auto()
    """Something accepts connections and says nothing."""
    SILENT = enum.auto()
    """Nothing comes back, or the name has no address."""


class TaskLostError(tf.errors.UnavailableError):
    """The tasks that train together have lost one. The message names it."""


class LostTasks:
    """What one task knows of the others when a collective has failed.

    Args:
        me: the task of this process.
        tasks: all that train, with addresses.
        look: returns what is found at the address of a task, before a deadline.
        abort: ends the execution of all tasks, with a message.
        clock: returns seconds.
    """

    def __init__(
        self,
        me: Task,
        tasks: Sequence[Task],
        look: "Callable[[Task, Deadline], Reach] | None" = None,
        abort: Callable[[str], None] = abort_collectives,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._me, self._others = me, [task for task in tasks if task is not me]
        following = tasks[(tasks.index(me) + 1) % len(tasks)]
        self._watched = [_Watched(task) for task in dict.fromkeys((following, tasks[0])) if task is not me]
        self._closed: dict[str, int] = {}  # Looks in sequence that found no server, by the name of a task.
        self._look, self._abort = look or reach, abort
        self._clock = clock
        self._is_aborted = False

    def look_around(self) -> bool:
        """Ends the execution of all tasks if the next or the first one has no server, or was silent for `lost_seconds`.

        One without a server has ended, or has been started again. One that is silent is cut off. One that a signal has stopped
        is neither: its heartbeats decide. Every lost task is the next one of a task that is not lost, or of another lost one.

        Returns:
            Whether one has no server, and another look has to confirm it.
        """
        found = self._found([watched.task for watched in self._watched])
        for watched in self._watched:
            why = watched.lost(found[watched.task], self._clock())
            if why is not None and not self._is_aborted:
                self._is_aborted = True
                with contextlib.suppress(tf.errors.OpError):  # The service that would tell the others is gone, or they know it.
                    self._abort(why)
        return Reach.CLOSED in found.values() and not self._is_aborted

    def has_left(self, name: str) -> bool:
        """Looks at one task; returns whether its process has ended, as looks in sequence have found."""
        (task,) = (each for each in self._others if each.name == name)
        is_closed = self._found([task])[task] is Reach.CLOSED
        self._closed[name] = self._closed.get(name, 0) + 1 if is_closed else 0
        return self._closed[name] >= CLOSED_LOOKS

    def watch(self, name: str, may_end: bool = False) -> Callable[[], TaskLostError | None]:
        """Begins to look at a task that this one waits for outside of an execution, in which its heartbeats would decide.

        Args:
            name: of the task.
            may_end: whether its program may end while this task waits. Then one without a server is not lost.

        Returns:
            What looks once more, and returns an error if the task has no server, or gave no answer for `lost_seconds`.
        """
        (task,) = (each for each in (self._me, *self._others) if each.name == name)
        watched = _Watched(task, (Reach.SILENT, Reach.MUTE))

        def look() -> TaskLostError | None:
            reach = self._found([task])
            if watched.lost(reach[task], self._clock()) is None or (may_end and reach[task] is Reach.CLOSED):
                return None
            keep_context()
            return _error(lost(self._me, reach, "") or "")

        return look

    def explain(self, error: tf.errors.OpError) -> TaskLostError | None:
        """Returns an error that names the lost task, after at most `LOOK_SECONDS`; None if all tasks are there.

        With a lost task TensorFlow's runtime stays as it is when the process ends.
        """
        if not isinstance(error, LOSSES):
            return None
        deadline = Deadline.after(LOOK_SECONDS)
        while (sentence := self._sentence(error.message)) is None:
            if deadline.expired():
                return None
            time.sleep(PAUSE_SECONDS)
        keep_context()
        _log.warning("TensorFlow reports: %s", error.message)
        return _error(sentence)

    def _sentence(self, text: str) -> str | None:
        """Returns `lost` after a look at all; where all others serve, what TensorFlow's `text` says of a link between two."""
        return lost(self._me, self._found(self._others), text) or self._cut_between(text)

    def _cut_between(self, text: str) -> str | None:
        told = _TOLD.search(text)
        names = (f"{told[1]}:{told[2]}", f"{told[3]}:{told[4]}") if told is not None else ()
        ends = [f"{task.name} ({task.address})" for task in self._others if task.name in names]
        return f"the link between {' and '.join(ends)} is cut, although they answer this task" if len(ends) == 2 else None

    def _found(self, tasks: Sequence[Task]) -> dict[Task, Reach]:
        found = dict.fromkeys(tasks, Reach.SILENT)  # Whose name cannot be looked up in time stays so.
        deadline = Deadline.after(ANSWER_SECONDS)

        def look(task: Task) -> None:
            found[task] = self._look(task, deadline)

        in_parallel(look, tasks, Deadline.after(ANSWER_SECONDS + 1.0))  # A busy machine runs the threads late.
        return dict(found)


def _error(sentence: str) -> TaskLostError:
    return TaskLostError(None, None, f"{sentence}; the training cannot go on: start the program again on every task")


class _Watched:
    """A task that another one looks at again and again. `silences`: what counts as no answer."""

    def __init__(self, task: Task, silences: Sequence[Reach] = (Reach.SILENT,)) -> None:
        self.task = task
        self._silences = silences
        self._closed = 0  # Looks in sequence that found no server.
        self._silent_since: float | None = None

    def lost(self, found: Reach, now: float) -> str | None:
        """Returns why it counts as lost after one more look, or None."""
        where = f"at the address of /job:{self.task.job}/task:{self.task.index} ({self.task.address})"
        self._closed = self._closed + 1 if found is Reach.CLOSED else 0
        if found not in self._silences:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        if self._closed >= CLOSED_LOOKS:
            return f"no server {where}"
        silent = 0.0 if self._silent_since is None else now - self._silent_since
        return f"no answer for {silent:.0f} s {where}" if silent >= lost_seconds() else None


def lost(me: Task, found: Mapping[Task, Reach], text: str) -> str | None:
    """Returns a sentence about the task that is lost; None if all others serve.

    Args:
        me: the task that has looked.
        found: what it has found at the addresses of all others.
        text: what TensorFlow says. It decides only between several that have ended: one of them ended first.
    """
    by_reach = {each: [task for task in found if found[task] is each] for each in Reach}
    silent, mute, closed = by_reach[Reach.SILENT], by_reach[Reach.MUTE], by_reach[Reach.CLOSED]
    if silent and len(silent) == len(found):
        here = f"{me.name} ({me.address}), this task"
        if len(found) > 1:
            return f"{here}, reaches none of the {len(found)} others: its own link is cut, or all of theirs"
        return f"no answer from {waiting_for(silent)}: its link is cut, or that of {here}"
    if silent:
        return f"no answer from {waiting_for(silent)}: cut off, or switched off"
    if mute:
        return f"no answer from {waiting_for(mute)}: stopped by a signal, or too busy to answer"
    if closed:
        named = [f"{job}:{index}" for job, index in _NAMED.findall(text)]
        first = next((task for name in named for task in closed if task.name == name), None)
        return f"lost {waiting_for(closed if first is None else [first])}: ended, or started again"
    return None


def reach(task: Task, deadline: Deadline) -> Reach:
    """Returns what this process finds at the address of a task, before a deadline."""
    try:
        connection = connect(task, deadline)
    except ConnectionRefusedError:
        return Reach.CLOSED
    except OSError:
        return Reach.SILENT
    try:
        with connection:
            connection.sendall(hello())
            connection.settimeout(max(0.01, deadline.remaining()))
            return Reach.SERVES if connection.recv(1) else Reach.CLOSED
    except TimeoutError:
        return Reach.MUTE
    except OSError:
        return Reach.CLOSED
