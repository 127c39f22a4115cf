"""The end of the user's program, as exit functions see it."""

import atexit
import os
import sys
from collections.abc import Callable


def program_failed() -> bool:
    """Returns whether an exception has ended the program.

    The interpreter records such an exception in `sys.last_type` before it calls exit functions, and so does the launcher
    (launch/backends/local/run_program.py), also for an exit code other than 0.
    """
    return getattr(sys, "last_type", None) is not None


def at_program_end(function: Callable[[bool], object]) -> None:
    """Calls `function(failed)` when the program of this process ends. The end of a forked child does not count."""
    process = os.getpid()

    def end() -> None:
        if os.getpid() == process:
            function(program_failed())

    atexit.register(end)
