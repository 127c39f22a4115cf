"""Waits for the tasks of a cluster to start, without TensorFlow.

TensorFlow itself waits without a limit and does not name the missing tasks (for example tensorflow#46931).
"""

import enum
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from tfdist.cluster import Task
from tfdist.errors import StartTimeoutError
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.task_address import connect

POLL_SECONDS = 0.1
FIRST_POLL_SECONDS = 0.01
"""Between two questions to a task: at first this long for each of the tasks, because those that a launcher starts again come
within moments of each other, and later a tenth of the time that was waited, at most `POLL_SECONDS`."""

LOG_SECONDS = 10.0
ANSWER_SECONDS = 5.0
"""How long one question to a task may take. Then it is asked again."""

_Each = TypeVar("_Each")

_failures: dict[str, str] = {}
"""Why tasks will not start, by their addresses."""


class Missing(enum.Enum):
    """Why a task counts as not started: what was found, and what to do."""

    SILENT = ("no answer from", "start these tasks, or check that their addresses can be reached from here")
    NO_ADDRESS = ("this machine finds no address for the name of", "correct that name, or make it known here (DNS, /etc/hosts)")
    NOT_TENSORFLOW = (
        "something else than a TensorFlow server answers at the address of",
        "end that program, or describe another port",
    )
    MUTE = (
        "something accepts connections, and no TensorFlow server answers, at the address of",
        "end the program that has this port, or describe another port; a task that is stopped by a signal looks the same",
    )
    OTHER_TASK = (
        "the TensorFlow server of another task answers at the address of",
        "end the other job, or describe another port",
    )
    EARLIER = (
        "a training that has begun without this task still answers at the address of",
        "end it there, or wait until it has noticed that it lost a task, and start it again",
    )


def not_connected(error: OSError) -> Missing:
    """Returns what an error of `connect` means for a task that is awaited."""
    return Missing.NO_ADDRESS if isinstance(error, socket.gaierror) else Missing.SILENT


def is_listening(task: Task, timeout: float = 1.0) -> bool:
    """Returns whether the address of `task` accepts TCP connections, after at most `timeout` seconds."""
    try:
        connect(task, Deadline.after(timeout)).close()
    except OSError:
        return False
    return True


def in_parallel(function: Callable[[_Each], object], each: Iterable[_Each], deadline: Deadline) -> None:
    """Calls `function` for each task or group, in a thread for each, and waits for the calls until `deadline`.

    If no threads are left, it makes the calls one after the other.
    """
    threads = []
    for one in each:
        thread = threading.Thread(target=function, args=(one,), name="tfdist-peers", daemon=True)
        try:
            thread.start()
            threads.append(thread)
        except RuntimeError:
            function(one)
    for thread in threads:
        thread.join(deadline.remaining())


def waiting_for(tasks: Iterable[Task]) -> str:
    """Returns `worker:1 (host:port), ps:0 (host:port)`: at most ten tasks, then the number of further ones."""
    named = [f"{task.name} ({task.address})" for task in tasks]
    more = f" and {len(named) - 10} more" if len(named) > 10 else ""
    return ", ".join(named[:10]) + more


def note_failures(tasks: Iterable[Task], reason: str | None) -> None:
    """Notes why these tasks will not start, which ends every wait for them; None: they are being started."""
    for task in tasks:
        if reason is None:
            _failures.pop(task.address, None)
        else:
            _failures[task.address] = reason


def _why_missing(task: Task, deadline: Deadline) -> Missing | None:
    try:
        connect(task, deadline.within(1.0)).close()
    except OSError as error:
        return not_connected(error)
    return None


def wait_for_tasks(
    tasks: Sequence[Task],
    timeout: float,
    log: Callable[[str], None],
    why_missing: Callable[[Task, Deadline], Missing | None] = _why_missing,
    is_enough: Callable[[Collection[Task]], bool] = lambda missing: not missing,
) -> None:
    """Waits until every task has started, or enough of them. All are asked at the same time.

    Args:
        tasks: tasks with addresses.
        timeout: seconds until it gives up.
        log: called every 10 s with a sentence that names the missing tasks.
        why_missing: returns why a task counts as missing, before a deadline, or None. By default it has started when its
            address accepts connections.
        is_enough: whether to go on although these tasks are missing.

    Raises:
        StartTimeoutError: if a task has not started within `timeout` seconds, or will not start (`note_failures`).
    """
    _Wait(tasks, timeout, why_missing, is_enough).run(log)


class _Wait:
    """One call of `wait_for_tasks`, with its arguments."""

    def __init__(
        self,
        tasks: Sequence[Task],
        timeout: float,
        why_missing: Callable[[Task, Deadline], Missing | None],
        is_enough: Callable[[Collection[Task]], bool],
    ) -> None:
        self._timeout, self._why_missing, self._is_enough = timeout, why_missing, is_enough
        self._deadline, self._begin = Deadline.after(timeout), time.monotonic()
        self._longest_first_poll = FIRST_POLL_SECONDS * len(tasks)
        self._missing: dict[Task, Missing] = dict.fromkeys(tasks, Missing.SILENT)
        self._changed = threading.Condition()
        self._is_over = threading.Event()

    def run(self, log: Callable[[str], None]) -> None:
        """Asks all tasks, each in a thread of its own, and waits."""
        for task in list(self._missing):
            threading.Thread(target=self._ask, args=(task,), name="tfdist-peers", daemon=True).start()
        try:
            with self._changed:
                while not self._changed.wait_for(self._has_ended, self._deadline.within(LOG_SECONDS).remaining()):
                    if self._deadline.expired():
                        sentences = "; ".join(f"{sentence}; {reason.value[1]}" for reason, sentence in self._by_reason())
                        raise StartTimeoutError(f"gave up after {self._timeout:.0f} s: {sentences}")
                    others = [sentence for reason, sentence in self._by_reason() if reason is not Missing.SILENT]
                    log("; ".join([f"waiting {self._waited():.0f} s for {waiting_for(self._missing)}", *others]))
                if not self._is_enough(self._missing.keys()):
                    failed = self._failed()
                    reason = _failures[failed[0].address]
                    named = [task for task in failed if _failures[task.address] == reason]
                    raise StartTimeoutError(f"gave up on {waiting_for(named)}: {reason}")
        finally:
            self._is_over.set()

    def _ask(self, task: Task) -> None:
        """Asks a task until it has started."""
        seconds = min(ANSWER_SECONDS, self._timeout / 2)  # Of a question: the deadline finds at least one answered.
        while (reason := self._why_missing(task, self._deadline.within(seconds))) is not None:
            with self._changed:
                self._missing[task] = reason
                if task.address in _failures:
                    self._changed.notify()
            if self._is_over.wait(min(POLL_SECONDS, max(self._longest_first_poll, self._waited() / 10))):
                return
        with self._changed:
            del self._missing[task]
            self._changed.notify()

    def _waited(self) -> float:
        return time.monotonic() - self._begin

    def _has_ended(self) -> bool:
        return self._is_enough(self._missing.keys()) or bool(self._failed())

    def _failed(self) -> list[Task]:
        """Returns the tasks that will not start; none if the others are enough."""
        failed = [task for task in self._missing if task.address in _failures]
        return [] if self._is_enough(failed) else failed

    def _by_reason(self) -> list[tuple[Missing, str]]:
        """Returns each reason with the beginning of a sentence that names its tasks."""
        tasks: dict[Missing, list[Task]] = {}
        for task, reason in self._missing.items():
            tasks.setdefault(reason, []).append(task)
        return [(reason, f"{reason.value[0]} {waiting_for(named)}") for reason, named in tasks.items()]


def port_error(task: Task) -> str | None:
    """Returns why this process cannot listen at the port of `task`, as the system says it; None if it can."""
    try:
        listener(task.port).close()
    except OSError as cause:
        return cause.strerror
    return None


def listener(port: int | None) -> socket.socket:
    """Returns a socket that accepts connections at a port of this machine, on all its addresses.

    Raises:
        OSError: if the port cannot be had.
    """
    both = socket.has_dualstack_ipv6()
    opened = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    try:
        if both:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if os.environ.get("TF_GRPC_REUSE_PORT") == "1":  # The launcher holds the port. Without it TensorFlow could not bind it.
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.bind(("", port))
        opened.listen(socket.SOMAXCONN)
    except OSError:
        opened.close()
        raise
    return opened
