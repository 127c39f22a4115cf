"""Bounds what TensorFlow itself waits for without a limit: a task that has answered, and is stopped a moment later."""

import contextlib
import faulthandler
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Ends the process with a traceback and exit code 1 if the block takes longer than `seconds`.

    While TensorFlow connects to tasks that are gone again, no other Python thread runs; the timer of faulthandler does.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
