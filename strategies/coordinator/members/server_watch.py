"""`ServerWatch`: ends a training whose ps do not answer. TensorFlow would wait for them without a limit."""

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from tfdist.cluster import Task
from tfdist.errors import ServersGoneError
from tfdist.strategies.coordinator.members.disconnect import disconnect
from tfdist.strategies.coordinator.members.probe import PROBE_SECONDS, answering
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.peers import waiting_for

POLL_SECONDS = 2.0
"""How often the ps are asked."""

LEAST_SECONDS = 1.0
"""A ps has at least this long to answer. While one is gone, calls to it end this often: each new one would wait for it."""

_log = logging.getLogger("tfdist")


class ServerWatch:
    """Asks the ps tasks for an answer, as long as this object exists, until `stop`.

    Args:
        servers: the tasks that hold parameters, with addresses.
        workers: the worker tasks, which may wait for a ps.
        seconds: how long a ps may give no answer.
        clock: returns the current moment in seconds.

    Attributes:
        seconds: the same.
        when_gone: called once when a ps is gone, in the thread that notices it.
    """

    def __init__(
        self, servers: Sequence[Task], workers: Sequence[Task], seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self.when_gone: Callable[[], None] = lambda: None
        self._servers = tuple(servers)
        self._workers = tuple(workers)
        self._clock = clock
        self._silent_since: dict[Task, float] = {}
        self._gone: str | None = None
        self._ended = False

    def start(self) -> None:
        """Asks every `POLL_SECONDS`, and more often when a ps is about to be gone, in a thread."""
        threading.Thread(target=_watch, args=(weakref.ref(self),), name="tfdist-server-watch", daemon=True).start()

    def stop(self) -> None:
        """The program has ended, and so do the ps. It may still wait for child processes, or for calls to a ps that is gone."""
        self._ended = True

    def look(self) -> None:
        """Asks all ps once. If one has not answered for too long, makes calls end that wait for it."""
        begin = self._clock()
        answers = answering(self._servers, Deadline.after(min(PROBE_SECONDS, max(LEAST_SECONDS, self._left()))))
        silent = [task for task in self._servers if task not in answers]
        self._silent_since = {task: self._silent_since.get(task, begin) for task in silent}
        gone = [task for task in silent if self._clock() - self._silent_since[task] >= self.seconds]
        if not gone or (self._ended and self._gone is None):
            self._gone = None
            return
        is_new = self._gone is None
        if self._gone is None:
            self._gone = self._sentence(gone)
            _log.error("%s", self._gone)
        # The main thread may wait for a ps, and workers for it. At the end of the program workers are told of it.
        for task in gone if self._ended else (*gone, *self._workers):
            disconnect(task)
        if is_new:
            self.when_gone()

    def _left(self) -> float:
        """Returns the seconds until a ps is gone, if it stays silent."""
        return min(self._silent_since.values(), default=math.inf) + self.seconds - self._clock()

    def _sentence(self, gone: Sequence[Task]) -> str:
        sentence = f"no answer from {waiting_for(gone)} for {self.seconds:.0f} s"
        others = [task for task in self._workers if task not in self._servers]
        if len(gone) == len(self._servers) and not answering(others, Deadline.after(PROBE_SECONDS)):
            sentence += f", nor from {waiting_for(others)}" if others else ""
            sentence += ": this task is cut off, or all of them have ended"
        return f"{sentence}; training cannot go on without the parameters there, start the job again from its backup"

    def check(self) -> None:
        """Raises ServersGoneError if a ps has not answered for too long."""
        if self._gone is not None:
            raise ServersGoneError(self._gone)


def _watch(reference: "weakref.ref[ServerWatch]") -> None:
    while (watch := reference()) is not None and not (watch._ended and watch._gone is None):
        watch.look()
        seconds = min(POLL_SECONDS, max(LEAST_SECONDS / 2, watch._left()))
        del watch
        time.sleep(seconds)
