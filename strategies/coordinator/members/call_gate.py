"""A gate that holds calls to workers while TensorFlow changes the cluster: a call that begins meanwhile can fail or hang."""

import contextlib
import threading
from collections.abc import Iterator

HOLD_SECONDS = 10.0
"""A call waits at most this long for the gate, and closing at most twice this long for calls: a worker may never answer."""


class CallGate:
    """Lets calls of any threads pass, or none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_closed = False
        self._inside: set[object] = set()  # The calls.
        self._own = threading.local()  # How many calls of this thread are inside one another.

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Surrounds calls to workers. Waits while the gate is closed. A thread that is inside does not wait again."""
        depth = getattr(self._own, "depth", 0)
        call = object()
        if not depth:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_closed, HOLD_SECONDS)
                self._inside.add(call)
        self._own.depth = depth + 1
        try:
            yield
        finally:
            self._own.depth = depth
            if not depth:
                with self._changed:
                    self._inside.remove(call)
                    self._changed.notify_all()

    @contextlib.contextmanager
    def closed(self, seconds: float = HOLD_SECONDS) -> Iterator[None]:
        """Closes the gate, and waits for calls that are inside.

        First it waits for those that are inside now, while others pass: a group that is back compiles in its first call, and
        nobody has to wait for that. Then it lets none pass, and waits for those that have begun meanwhile.

        Args:
            seconds: how long each of both waits lasts at most. Calls that are then still inside go on.
        """
        with self._changed:
            first = set(self._inside)
            self._changed.wait_for(lambda: self._inside.isdisjoint(first), seconds)
            self._is_closed = True
            self._changed.wait_for(lambda: self._inside <= first, seconds)
        try:
            yield
        finally:
            with self._changed:
                self._is_closed = False
                self._changed.notify_all()
