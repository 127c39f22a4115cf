"""Ctrl-C while TensorFlow runs: `KeyboardInterrupt` is raised where TensorFlow has returned to its caller.

TensorFlow's C++ code calls Python functions, such as `TensorShape.__len__` for an attribute of an operation, and Python handles
signals there. TensorFlow 2.21 does not expect an exception from them: it frees memory twice, or raises `RuntimeError`,
`SystemError` or `AttributeError` in place of `KeyboardInterrupt`. An exception in a `__del__`, as its `Executor` has, is lost.
"""

import _thread
import os
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from tfdist.strategies.private_api import patches

LONGEST_SECONDS = 1.0
"""How long TensorFlow's Python code may go on after SIGINT, as in a loop that waits. Its calls from C++ take microseconds."""

_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})  # May be inside it.


def install() -> None:
    """Keeps Ctrl-C out of TensorFlow's code, now and in the calls of Keras. Calling it again does nothing."""
    keep_out_of_tensorflow()
    patches.FIT.patch(_call)
    patches.EVALUATE.patch(_call)
    patches.PREDICT.patch(_call)


def keep_out_of_tensorflow() -> None:
    """Makes SIGINT raise `KeyboardInterrupt` outside of TensorFlow's code.

    Does nothing in a program that handles SIGINT itself, and in another thread than the main one.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Handler())


# The replacement. The first parameter is the function that it replaces.


def _call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    keep_out_of_tensorflow()  # A notebook has set the handler of Python again, for this cell.
    return original(*args, **kwargs)


class _Handler:
    """Handles SIGINT."""

    def __init__(self) -> None:
        self._since: float | None = None  # The moment of a SIGINT that has not been raised yet.

    def __call__(self, number: int, frame: FrameType | None) -> None:
        caller = _caller_of_tensorflow(frame)
        # A debugger traces already.
        if caller is None or (sys.gettrace() is not None and self._since is None):
            self._raise()
        elif self._since is None:
            self._since = time.monotonic()
            _remind(self._since, self)
            caller.f_trace = self._trace
            sys.settrace(lambda *_: None)
        elif time.monotonic() - self._since >= LONGEST_SECONDS:
            self._raise()

    def is_pending(self, since: float) -> bool:
        """Returns whether the SIGINT of that moment has not been raised yet."""
        return self._since == since

    def _trace(self, *_: Any) -> None:
        # At the next line of the caller, or when it is left. Python forgets the trace function that raises.
        self._raise()

    def _raise(self) -> None:
        if self._since is not None:
            self._since = None
            sys.settrace(None)
        raise KeyboardInterrupt


def _remind(since: float, handler: _Handler) -> None:
    def send() -> None:
        time.sleep(LONGEST_SECONDS)
        if handler.is_pending(since):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    _thread.start_new_thread(send, ())  # `threading` takes locks, which the interrupted code may hold.


def _caller_of_tensorflow(frame: FrameType | None) -> FrameType | None:
    """Returns the innermost frame that is not TensorFlow's or of what TensorFlow calls; None if TensorFlow is not running."""
    tensorflow = getattr(sys.modules.get("tensorflow"), "__file__", None)
    if tensorflow is None:
        return None
    folder = os.path.dirname(tensorflow) + os.sep
    inside = False
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(folder) or code.co_name == "__del__":
            inside = True
        elif not _is_standard(code.co_filename):
            return frame if inside else None
        frame = frame.f_back
    return None


def _is_standard(path: str) -> bool:
    return path.startswith("<frozen") or (path.startswith(_STANDARD_LIBRARY) and not path.startswith(_INSTALLED))
