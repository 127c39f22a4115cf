"""Finds out that tasks which train together make different calls, before they wait for each other forever.

Under multi_worker_mirrored every execution of a `fit`, `evaluate` or `predict` is collective. A program that evaluates in one
task only, as it would with Horovod, or gives tasks different numbers of batches, would wait without end and without a word. So
each call begins with an agreement: every task says what it calls, by TensorFlow's coordination service, the first one compares,
and all get the verdict. It costs a task one question and one answer.

A task may call `evaluate` while the others are in the middle of their `fit`. They never come to an agreement, so a task that
has been in an execution for some seconds says in which. A task that waits for an agreement, and has not begun that execution,
knows then that each waits for the other.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.errors import DifferentCallsError
from tfdist.strategies.data_parallel.board import ADVICE, BACKUP_ADVICE, DATA_ADVICE, STEP_ADVICE, Board
from tfdist.strategies.data_parallel.first_batch import FirstBatch
from tfdist.strategies.data_parallel.lost_tasks import LostTasks, TaskLostError
from tfdist.strategies.private_api.error_report import keep_context
from tfdist.strategies.runtime.lost_timeout import lost_seconds
from tfdist.strategies.runtime.program_end import last_error

POLL_SECONDS = 1.0
"""How long a task waits for an agreement before it looks whether it waits in vain."""

MOMENT_SECONDS = 0.01
"""How long a look at a value that may not be there takes."""

EXECUTION_SECONDS = 5.0
"""After so long in one execution a task says in which. Most take less, and say nothing."""

LOOK_SECONDS = 0.25
"""After so long in one execution a task looks whether the others are there. TensorFlow may not notice that one is dead, and the
launcher, which does, waits for the rest before it starts all again."""

SELDOM_SECONDS = 1.0
"""How often it looks at most while an execution lasts and the others are there."""

FAILED = "failed"
"""What a task tells of the end of its program if that has failed."""

END_SECONDS = 600.0
"""How long a task that has ended its program waits for the others, where it does."""

WARNING_SECONDS = 60.0
"""After so long without an agreement a warning names the tasks that are missing."""

_log = logging.getLogger("tfdist")


class SameCalls:
    """One task's view of the calls that all tasks make.

    Args:
        me: the name of this task.
        names: the names of all tasks; the first compares.
        lost: looks at the others: while an execution lasts longer than `LOOK_SECONDS`, first often and later every
            `SELDOM_SECONDS`; after an error; and every `POLL_SECONDS` at a task that is waited for outside of an execution,
            where nothing collective runs that would fail.
        board: where they tell each other.
        clock: returns seconds.

    Attributes:
        me: as given.
        names: as given.
        board: as given.
    """

    def __init__(
        self,
        me: str,
        names: Sequence[str],
        lost: LostTasks,
        board: Board | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.me, self.names = me, list(names)
        self.board = board or Board(None if me == self.names[0] else lambda: lost.watch(self.names[0], may_end=True))
        self._clock = clock
        self._lost = lost
        self._agreements = 0
        self._executions = 0
        self._sources = 0
        self._execution: tuple[int, float] | None = None  # The number of the one that runs, and when it began.
        self._published_number: int | None = None  # The number of the one that the others know of.
        self._next_look = 0, LOOK_SECONDS  # The number of an execution, and how long it lasts then.
        self._counted = "", 0  # After which execution the tasks have counted last, and the result.
        self._watchers: list[threading.Thread] = []
        self._is_lost = False
        self._is_over = threading.Event()

    def agree(self, facts: dict[str, Any]) -> None:
        """Waits for the call of every task, and compares them.

        Args:
            facts: what has to be equal: `call`, and what else is known of it; None is equal to everything.

        Raises:
            DifferentCallsError: in every task, if they differ.
            TaskLostError: instead of TensorFlow's error, if a task is lost (lost_tasks.py).
        """
        self._agreements += 1
        with self.explained():
            self._agree(f"calls/{self._agreements}", facts)

    def _agree(self, place: str, facts: dict[str, Any]) -> None:
        self.board.put(f"{place}/{self.me}", json.dumps(facts))
        deadline = self._clock() + WARNING_SECONDS
        if self.me == self.names[0]:
            calls = {self.me: facts}
            verdict = ""
            try:
                for name in self.names[1:]:
                    calls[name] = json.loads(self._wait(f"{place}/{name}", name, facts, deadline))
                verdict = difference(calls)
            except DifferentCallsError as error:
                verdict = str(error)
            self.board.put(f"{place}/verdict", verdict)
        else:
            verdict = self._wait(f"{place}/verdict", self.names[0], facts, deadline)
        # All tasks have read what was said for the agreement before, for they have come to this one.
        if self._agreements > 1:
            self.board.remove(f"calls/{self._agreements - 1}/{self.me}")
            if self.me == self.names[0]:
                self.board.remove(f"calls/{self._agreements - 1}/verdict")
        if verdict:
            raise DifferentCallsError(verdict)

    def _wait(self, key: str, name: str, facts: dict[str, Any], deadline: float) -> str:
        """Returns a value for which `name` has to come to this agreement."""
        is_warned, loss = False, self.watch(name)
        while (value := self.board.take(key, POLL_SECONDS)) is None:
            has_ended = self.has_ended(name)
            execution = self.board.take(f"executing/{name}", MOMENT_SECONDS)
            if (value := self.board.take(key, MOMENT_SECONDS)) is not None:
                break  # It came first; this process may have been stopped for any time in between.
            if has_ended:
                raise DifferentCallsError(f"{name} has ended its program, and {self.me} calls {facts['call']}; {ADVICE}")
            if execution is not None and int(execution) > self._executions:
                raise DifferentCallsError(
                    f"{self.me} begins to read data for {facts['call']} while {name} is in a step and waits for it; {ADVICE}"
                )
            if (error := loss()) is not None:
                raise error
            if not is_warned and self._clock() >= deadline:
                is_warned = True
                _log.warning("%s waits for %s, which has not called %s yet; %s", self.me, name, facts["call"], ADVICE)
        return value

    def count(self, holds: bool) -> int:
        """Returns in how many tasks something holds that each of them may tell once after an execution.

        Args:
            holds: whether it holds in this one. One that has gone on without telling it does not count.

        Raises:
            TaskLostError: if a task is lost.
        """
        place = f"counts/{self._executions}"
        if self._counted[0] != place:
            with self.explained():
                self._counted = place, self._count(place, holds)
        return self._counted[1]

    def _count(self, place: str, holds: bool) -> int:
        self.board.put(f"{place}/{self.me}", str(int(holds)))
        if self.me != self.names[0]:
            return int(self._answer(f"{place}/total", self.names[0]) or holds)
        total = int(holds) + sum(int(self._answer(f"{place}/{name}", name) or 0) for name in self.names[1:])
        self.board.put(f"{place}/total", str(total))
        return total

    def _answer(self, key: str, name: str) -> str | None:
        """Waits for a value for which `name` has to come to the same place; None if it has gone on."""
        loss = self.watch(name)
        while (value := self.board.take(key, POLL_SECONDS)) is None and not self.ahead(name):
            if (error := loss()) is not None:
                raise error
        return self.board.take(key, MOMENT_SECONDS) if value is None else value

    def watch(self, name: str, may_end: bool = False) -> Callable[[], Exception | None]:
        """Begins to watch a task while this one waits for it; see `LostTasks.watch`."""
        loss = self._lost.watch(name, may_end)

        def look() -> Exception | None:
            error = loss()
            self._is_lost = self._is_lost or error is not None
            return error

        return look

    def watch_chief(self) -> Callable[[], Exception | None]:
        """Begins to watch the first task, whose program may end while this one waits for it."""
        return self.watch(self.names[0], may_end=True)

    def has_ended(self, name: str, seconds: float = MOMENT_SECONDS) -> bool:
        """Returns whether the program of a task has ended. Waits for that for some seconds."""
        return self.board.take(f"ended/{name}", seconds) is not None

    def ahead(self, name: str) -> str:
        """Returns what a task does that this one has not come to, such as "calls fit"; "" if nothing shows that."""
        if self.has_ended(name):
            return "has ended its program"
        call = self.board.take(f"calls/{self._agreements + 1}/{name}", MOMENT_SECONDS)
        if call is not None:
            return f"calls {json.loads(call)['call']}"
        execution = self.board.take(f"executing/{name}", MOMENT_SECONDS)
        return "is in a step" if execution is not None and int(execution) > self._executions else ""

    @contextlib.contextmanager
    def executing(self) -> Iterator[None]:
        """Surrounds what all tasks execute together. Inside of another one it does nothing.

        Raises:
            TaskLostError: instead of TensorFlow's error, if a task is lost (lost_tasks.py).
        """
        if self._execution is not None:
            yield
            return
        if not self._watchers:  # Each in a thread of its own, and without a lock: `look` may wait for the first task.
            for function, seconds in ((self.look, EXECUTION_SECONDS), (self.look_at_others, LOOK_SECONDS)):
                watcher = threading.Thread(
                    target=self._repeat, args=(function, seconds / 2), name="tfdist-same-calls", daemon=True
                )
                watcher.start()
                self._watchers.append(watcher)
        self._executions += 1
        self._execution = self._executions, self._clock()
        try:
            with self.explained():
                yield
        finally:
            self._execution = None

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Surrounds a wait for other tasks: raises an error that says more than that of TensorFlow, if there is one."""
        try:
            yield
        except (tf.errors.OpError, DifferentCallsError) as error:
            # That of the board says that the first task is gone: lost, or ended because another one is lost.
            reported = error.__cause__ if isinstance(error, DifferentCallsError) else error
            if isinstance(reported, TaskLostError):
                self._is_lost = True  # The board has found it.
            elif isinstance(reported, tf.errors.OpError) and not self._is_lost and (better := self._lost.explain(reported)):
                self._is_lost = True  # Nobody is told anything more: it may be the first task, which keeps what is told.
                raise better from reported
            raise

    def _repeat(self, function: Callable[[], None], seconds: float) -> None:
        while not self._is_over.wait(seconds) and not self._is_lost:
            function()

    def look_at_others(self) -> None:
        """Looks whether they are there, if this task has been in an execution for long enough."""
        execution = self._execution
        if execution is None:
            return
        number, seconds = execution[0], self._clock() - execution[1]
        if seconds >= (self._next_look[1] if self._next_look[0] == number else LOOK_SECONDS):
            pause = 0.0 if self._lost.look_around() else min(seconds, SELDOM_SECONDS)
            self._next_look = number, seconds + pause

    def _long_execution(self) -> int | None:
        """Returns the number of the execution that has lasted for `EXECUTION_SECONDS`."""
        execution = self._execution
        return execution[0] if execution is not None and self._clock() - execution[1] >= EXECUTION_SECONDS else None

    def look(self) -> None:
        """Tells the others in which execution this task is, if it has been there for some time; takes back one that is over.

        Until it is taken back nobody is misled: all who have been in that execution know it by its number.
        """
        number = self._long_execution()
        with contextlib.suppress(tf.errors.OpError):
            if self._published_number not in (None, number):
                self._published_number = None
                self.board.remove(f"executing/{self.me}")
            if number is not None and self._published_number is None:
                self._published_number = number
                self.board.put(f"executing/{self.me}", str(number))

    def first_batch(self, apart: bool = False) -> FirstBatch:
        """Returns what compares the first batches of the data of the next call.

        Args:
            apart: whether each task should read data of its own.
        """
        self._sources += 1
        return FirstBatch(self.me, self.names, f"first_batch/{self._sources}", self.board, apart)

    def end(self, failed: bool = False) -> None:
        """Tells the others that the program of this task has ended. Calling it again does nothing.

        The first task keeps what is told. If it gives no answer, this returns after `lost_seconds`.
        """
        if self._is_over.is_set():
            return
        self._is_over.set()
        if failed:
            self._name_lost_task()
        if self._is_lost:
            return
        teller = threading.Thread(target=self._tell_end, args=(failed,), name="tfdist-same-calls", daemon=True)
        teller.start()
        teller.join(lost_seconds())
        if teller.is_alive():
            self._is_lost = True
            keep_context()  # The first task, which keeps what is told, is lost.

    def _tell_end(self, failed: bool) -> None:
        with contextlib.suppress(tf.errors.OpError):
            self.board.put(f"ended/{self.me}", FAILED if failed else "")

    def _name_lost_task(self) -> None:
        """Names the lost task if the error of a collective has ended the program, in a loop of its own."""
        error = last_error()
        while error is not None and not isinstance(error, tf.errors.OpError):
            error = error.__cause__ or error.__context__
        if error is not None and not self._is_lost and (better := self._lost.explain(error)) is not None:
            self._is_lost = True
            _log.error("%s", better)

    def await_ends(self) -> list[str]:
        """Ends this task's calls and waits for the ends of the others' programs, for at most `END_SECONDS`.

        Returns:
            The tasks whose programs have failed, cannot be asked any more, or have not ended. Not one that has left without a
            word, as `os._exit` does: if it was killed, whatever started the tasks ends this one, too, before that is known.
        """
        self.end()
        latest = self._clock() + END_SECONDS
        return [name for name in self.names if name != self.me and not self._has_finished(name, latest)]

    def _has_finished(self, name: str, latest: float) -> bool:
        """Waits for the end of a task's program; returns whether it has finished."""
        try:
            while (value := self.board.take(f"ended/{name}", POLL_SECONDS)) is None:
                if self._lost.has_left(name):
                    break
                execution = self.board.take(f"executing/{name}", MOMENT_SECONDS)
                if self._clock() >= latest or (execution is not None and int(execution) > self._executions):
                    return False  # It waits for this task, which makes no more executions.
        except DifferentCallsError:
            return False
        return value != FAILED


def difference(calls: dict[str, dict[str, Any]]) -> str:
    """Returns a sentence about how the calls of the tasks differ; "" if they do not.

    Args:
        calls: name of a task -> facts, as `SameCalls.agree` takes them.
    """
    sentences = {
        "call": ("{0} calls {1} while {2} calls {3}", ADVICE),
        "epochs": ("fit makes the epochs {1} on {0} and {3} on {2}", "give every task the same epochs and initial_epoch"),
        "backups": ("fit has {1} BackupAndRestore on {0} and {3} on {2}", BACKUP_ADVICE),
        "step": ("with run_eagerly=True a step {1} on {0} and {3} on {2}", STEP_ADVICE),
        "batches": ("{call} has {1} batches on {0} and {3} on {2}", DATA_ADVICE),
        "spec": ("{call} gets batches of {1} on {0} and of {3} on {2}", DATA_ADVICE),
    }
    (first, facts), *others = calls.items()
    for key, (sentence, advice) in sentences.items():
        for name, each in others:
            one, other = facts.get(key), each.get(key)
            if one is not None and other is not None and one != other:
                return f"{sentence.format(first, one, name, other, call=facts['call'])}; {advice}"
    return ""
