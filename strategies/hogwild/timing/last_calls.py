"""The last calls before the chief waits: groups that make them do not wait for a group that has none left.

The chief waits at the end of an epoch, and within one if a callback stops the training, evaluates or reads weights. Then a
group may have pushed to a round for which another one has no call any more. At the end of an epoch this happens because the
chief counts calls and the ps count rounds: if a group was late, its last push is in a round before the last of the others (see
rounds.py). While the last calls run, the chief therefore tells the ps who still makes one.
"""

import threading
from collections.abc import Callable, Iterable, Set

FIRST_SECONDS, GROWTH, MOST_SECONDS = 0.02, 1.5, 0.5
"""The ps are told again after 0.02 s, because a group may have pushed meanwhile, then after 1.5 times as long, up to 0.5 s. It
begins anew when a group has made its last call."""

JOIN_SECONDS = 1.0
"""A ps that does not answer holds the next calls up no longer. It is found by those who need it."""


class LastCalls:
    """Tells the ps, while the last calls run.

    Args:
        running: returns the groups that make the calls in flight, none at the end; None while a call waits for a group.
        training: returns the groups that train.
        tell: takes the groups that make calls, if others that train make none.
    """

    def __init__(
        self, running: Callable[[], Set[int] | None], training: Callable[[], Iterable[int]], tell: Callable[[Set[int]], None]
    ) -> None:
        self._running, self._training, self._tell = running, training, tell
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Notes that no more calls will be scheduled before those in flight are done. May be called again."""
        if self._thread is None:
            self._is_over.clear()
            self._thread = threading.Thread(target=self._repeat, name="tfdist-last-calls", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Notes that other calls will be scheduled."""
        if self._thread is not None:
            self._is_over.set()
            self._thread.join(JOIN_SECONDS)
            self._thread = None

    def _repeat(self) -> None:
        seconds, told = FIRST_SECONDS, None
        while not self._is_over.wait(seconds):
            groups = self._running()
            if groups is not None and not groups:
                return
            if groups is None or groups >= set(self._training()):  # Nobody waits in vain.
                seconds, told = FIRST_SECONDS, None
                continue
            seconds = min(GROWTH * seconds, MOST_SECONDS) if groups == told else FIRST_SECONDS
            told = groups
            self._tell(groups)
