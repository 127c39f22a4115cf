"""A gate that holds calls to workers while TensorFlow changes the cluster: a call that begins meanwhile can fail."""

import contextlib
import threading
from collections.abc import Iterator

from tfdist.strategies.runtime.deadline import Deadline

HOLD_SECONDS = 10.0
"""A call waits at most this long for the gate, and closing waits at most this long for calls: a worker may never answer."""


class CallGate:
    """Lets calls of any threads pass, or none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_closed = False
        self._inside = 0
        self._own = threading.local()  # How many calls of this thread are inside one another.

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Surrounds calls to workers. Waits while the gate is closed. A thread that is inside does not wait again."""
        depth = getattr(self._own, "depth", 0)
        if not depth:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_closed, HOLD_SECONDS)
                self._inside += 1
        self._own.depth = depth + 1
        try:
            yield
        finally:
            self._own.depth = depth
            if not depth:
                with self._changed:
                    self._inside -= 1
                    self._changed.notify_all()

    @contextlib.contextmanager
    def closed(self, deadline: Deadline) -> Iterator[None]:
        """Closes the gate, and waits until the deadline for calls that are inside."""
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: not self._inside, deadline.remaining())
        try:
            yield
        finally:
            with self._changed:
                self._is_closed = False
                self._changed.notify_all()
