"""Finds out that a task reads a variable which is sharded over tasks, and the others make other calls.

The read is collective. A program that reads weights on the chief alone would wait for tasks that are in their next `fit`, or at
their end. So the tasks of a replica meet before the read: each says what it reads, and looks for what the others say.
"""

import contextlib
import time
from collections.abc import Callable, Sequence

from tfdist.errors import DifferentCallsError
from tfdist.strategies.data_parallel.board import Board
from tfdist.strategies.data_parallel.same_calls import POLL_SECONDS, SameCalls

ADVICE = (
    "all tasks of a replica have to make this call, because each holds a part of the weights: save the model and read its "
    "weights in every task, also where one uses them (`weights = model.get_weights()` before `if tfdist.is_chief():`); tfdist "
    "keeps the chief's files"
)


class SameReads:
    """One task's view of the reads of its replica.

    Args:
        calls: the calls of this task.
        names: the names of the tasks of the replica, that of this one included.
        board: where they tell each other.
        clock: returns seconds.
    """

    def __init__(
        self, calls: SameCalls, names: Sequence[str], board: Board | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls, self._me = calls, calls.me
        self._others = [name for name in names if name != calls.me]
        self._board = board or calls.board
        self._clock = clock
        self._reads = 0

    def meet(self, variable: str, seconds: float) -> None:
        """Waits until all tasks of the replica read a variable.

        Args:
            variable: its name.
            seconds: for how long at most, if nothing shows what the other tasks do.

        Raises:
            DifferentCallsError: if another task does something else, with what it does.
            TaskLostError: if a task is lost.
        """
        with self._calls.explained():
            self._meet(variable, seconds)

    def _meet(self, variable: str, seconds: float) -> None:
        self._reads += 1
        place = f"reads/{self._reads}"
        self._board.put(f"{place}/{self._me}", variable)
        for name in self._others:
            try:
                found = self._wait(f"{place}/{name}", name, variable, seconds)
            except DifferentCallsError:  # As if this task had not read. The next read of all is then the same for all.
                self._board.remove(f"{place}/{self._me}")
                self._reads -= 1
                raise
            if found != variable:
                raise DifferentCallsError(f"{self._me} reads {variable} while {name} reads {found}; {ADVICE}")
        if self._reads > 1:  # The others have come to this read, and so through the one before.
            self._board.remove(f"reads/{self._reads - 1}/{self._me}")

    def outlast(self, names: Sequence[str], seconds: float) -> None:
        """Waits, so many seconds, until programs of other tasks have ended. The first keeps what readers tell each other."""
        deadline = self._clock() + seconds
        with contextlib.suppress(DifferentCallsError):  # A task is gone: nobody reads any more.
            for name in names:
                while self._clock() < deadline and not self._calls.has_ended(name, POLL_SECONDS):
                    pass

    def _wait(self, key: str, name: str, variable: str, seconds: float) -> str:
        deadline, loss = self._clock() + seconds, self._calls.watch(name)
        while (found := self._board.take(key, POLL_SECONDS)) is None:
            doing = self._calls.ahead(name)
            if not doing and self._clock() >= deadline:
                doing = f"does not make this call within {seconds:.0f} s"
            if doing and (found := self._board.take(key, POLL_SECONDS)) is not None:
                break  # It came first; this process may have been stopped for any time in between.
            if not doing and (error := loss()) is not None:
                raise error
            if doing:
                raise DifferentCallsError(
                    f"{self._me} reads {variable}, which is sharded over tasks, and {name} {doing}; {ADVICE}"
                )
        return found
