"""The end of the user's program, as exit functions see it.

The interpreter records the exception that ends a program before it calls exit functions, but not `SystemExit`. So this module
notes what the main thread passes to `sys.exit`, `exit` and `quit`. Because a program may catch `SystemExit`, it also looks at
how the outermost frame has ended. A program that raises `SystemExit` without these functions counts as finished, unless the
launcher runs it, which sees the exit code.
"""

import _sitebuiltins
import atexit
import opcode
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_RETURNS = {opcode.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in opcode.opmap}

_outermost_frame: FrameType | None = None
"""The outermost frame of the main thread; None before the first call of `at_program_end`."""

_exit_code: Any = None
"""The argument of the last `sys.exit` in the main thread."""


def program_failed() -> bool:
    """Returns whether an exception has ended the program, other than `SystemExit` with 0 or None.

    The interpreter records an exception in `sys.last_type`, and so does the launcher
    (launch/backends/local/run_program.py), also for an exit code other than 0.
    """
    if getattr(sys, "last_type", None) is not None:
        return True
    finished = _exit_code is None or (isinstance(_exit_code, int) and _exit_code == 0)
    return not finished and _outermost_frame is not None and _was_unwound(_outermost_frame)


def last_error() -> BaseException | None:
    """Returns the exception that has ended the program, as exit functions see it."""
    error: BaseException | None = getattr(sys, "last_value", None)
    return error


def at_program_end(function: Callable[[bool], object]) -> None:
    """Calls `function(failed)` when the program of this process ends. The end of a forked child does not count."""
    process = os.getpid()
    _note_exit_codes()

    def end() -> None:
        if os.getpid() == process:
            function(program_failed())

    atexit.register(end)


def _note_exit_codes() -> None:
    global _outermost_frame
    if _outermost_frame is not None or threading.current_thread() is not threading.main_thread():
        return
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        _outermost_frame, frame = frame, frame.f_back
    quitter: Any = _sitebuiltins.Quitter
    sys_exit, quitter_call = sys.exit, quitter.__call__

    def exit_and_note(code: Any = None, /) -> Any:
        _note(code)
        sys_exit(code)

    def quit_and_note(self: Any, code: Any = None) -> Any:
        _note(code)
        quitter_call(self, code)

    sys.exit = exit_and_note
    quitter.__call__ = quit_and_note


def _note(code: Any) -> None:
    global _exit_code
    if threading.current_thread() is threading.main_thread():
        _exit_code = code


def _was_unwound(frame: FrameType) -> bool:
    """Returns whether an exception has left a frame that has ended: its last instruction is not a return."""
    return frame.f_code.co_code[frame.f_lasti] not in _RETURNS
