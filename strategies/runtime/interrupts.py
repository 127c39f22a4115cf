"""Ctrl-C: `KeyboardInterrupt` is raised where nothing is half done, so that a notebook can go on with its next cell.

It waits until TensorFlow has returned to its caller, a model is built, and code of tfdist has left a `with` or `finally`. It
also waits where Keras would lose it: `Model.save` and `load_model` open files in a `try` with an `except:`.

TensorFlow's C++ code calls Python functions, such as `TensorShape.__len__` for an attribute of an operation, and Python handles
signals there. TensorFlow 2.21 does not expect an exception from them: it frees memory twice, or raises `RuntimeError`,
`SystemError` or `AttributeError` in place of `KeyboardInterrupt`. An exception in a `__del__`, as its `Executor` has, is lost.
"""

import _thread
import contextlib
import os
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import keras

from tfdist.strategies.private_api import patches
from tfdist.strategies.runtime.cleanup_lines import cleans_up, loses_exceptions

LONGEST_SECONDS = 1.0
"""How long TensorFlow's Python code may go on after SIGINT, as in a loop that waits. Its calls from C++ take microseconds."""

HELD_SECONDS = 3.0
"""How long models and optimizers may go on being built after SIGINT. What is half built, Keras cannot use or build again.

The launcher kills a task 5 seconds after Ctrl-C (`--grace_period`).
"""

_GENERATED = "__autograph_generated_file"
"""Part of the names of files that AutoGraph makes from functions of the program. TensorFlow is tracing then."""

_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_KERAS = os.path.dirname(keras.__file__) + os.sep
_CALL_C = (_OWN, _KERAS)
"""Code that calls C code such as NumPy's, which drops an exception that comes while a tensor gives it a buffer."""

_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})  # May be inside it.

_WEAK = tuple(f"{_STANDARD_LIBRARY}{name}.py" for name in ("weakref", "_weakrefset"))
"""Code that weak references call back, in which Python drops an exception."""


def install() -> None:
    """Keeps Ctrl-C out of TensorFlow's code in the calls of Keras, after all other hooks. Calling it again does nothing."""
    patches.FIT.patch(_call)
    patches.EVALUATE.patch(_call)
    patches.PREDICT.patch(_call)
    patches.TRAIN_ON_BATCH.patch(_call)
    patches.TEST_ON_BATCH.patch(_call)
    patches.PREDICT_ON_BATCH.patch(_call)
    patches.SYMBOLIC_BUILD.patch(_build)


def keep_out_of_tensorflow() -> None:
    """Makes SIGINT raise `KeyboardInterrupt` as above.

    Does nothing in a program that handles SIGINT itself, and in another thread than the main one.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Handler())


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Raises `KeyboardInterrupt` at the end of this context, for what cannot be used half made. It comes in the main thread."""
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    with handler.held() if is_main and isinstance(handler, _Handler) else contextlib.nullcontext():
        yield


# Replacements. The first parameter is the function that they replace.


def _call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    keep_out_of_tensorflow()  # A notebook has set the handler of Python again, for this cell.
    return original(*args, **kwargs)


def _build(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with held():
        return original(*args, **kwargs)


class _Handler:
    """Handles SIGINT."""

    def __init__(self) -> None:
        self._since: float | None = None  # The moment of a SIGINT that has not been raised yet.
        self._longest = 0.0  # How long it may wait, in seconds.
        self._is_held = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        waits = frame is not None and (
            _is_cleaning_up(frame) or _is_lost(frame) or frame.f_code.co_filename.startswith(_CALL_C)
        )
        caller = frame if waits else _caller_of_tensorflow(frame)
        if self._since is not None:
            if time.monotonic() - self._since < self._longest:
                return
            if _is_lost(frame):  # A large file may take long.
                self._postpone(self._longest)
            else:
                self._raise()
        elif self._is_held:
            self._postpone(HELD_SECONDS)
        elif caller is None or sys.gettrace() is not None:  # A debugger traces already.
            raise KeyboardInterrupt
        else:
            self._postpone(LONGEST_SECONDS)
            caller.f_trace = self._trace
            sys.settrace(_trace_nothing)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Raises `KeyboardInterrupt` at the end of this context."""
        outer, self._is_held = self._is_held, True
        try:
            yield
        finally:
            self._is_held = outer
            if self._since is not None and not outer:
                self._raise()

    def is_pending(self, since: float) -> bool:
        """Returns whether the SIGINT of that moment has not been raised yet."""
        return self._since == since

    def _postpone(self, longest: float) -> None:
        self._since, self._longest = time.monotonic(), longest
        _remind(self._since, longest, self)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        # An exception at the end of a function would leave out its `finally`. Python forgets a trace function that raises.
        if self._since is None:
            return None
        if event == "line" and not _is_cleaning_up(frame) and not _is_lost(frame):
            self._raise()
        if event == "return" and frame.f_back is not None:
            (_caller_of_tensorflow(frame.f_back) or frame.f_back).f_trace = self._trace
        return self._trace

    def _raise(self) -> None:
        self._since = None
        if sys.gettrace() is _trace_nothing:
            sys.settrace(None)
        raise KeyboardInterrupt


def _trace_nothing(*_: Any) -> None:
    """Python calls the trace function of a frame only while there is one for new frames."""


def _remind(since: float, seconds: float, handler: _Handler) -> None:
    def send() -> None:
        time.sleep(seconds)
        if handler.is_pending(since):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    _thread.start_new_thread(send, ())  # `threading` takes locks, which the interrupted code may hold.


def _is_cleaning_up(frame: FrameType | None) -> bool:
    """Returns whether code of tfdist is leaving a `with` or `try`, or a finalizer runs, in any frame."""
    while frame is not None:
        path = frame.f_code.co_filename
        if frame.f_code.co_name == "__del__" or path in _WEAK or (path.startswith(_OWN) and cleans_up(frame)):
            return True
        frame = frame.f_back
    return False


def _is_lost(frame: FrameType | None) -> bool:
    """Returns whether Keras would drop an exception and go on, in any frame."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_KERAS) and loses_exceptions(frame):
            return True
        frame = frame.f_back
    return False


def _caller_of_tensorflow(frame: FrameType | None) -> FrameType | None:
    """Returns the innermost frame that is not TensorFlow's or of what TensorFlow calls; None if TensorFlow is not running."""
    tensorflow = getattr(sys.modules.get("tensorflow"), "__file__", None)
    if tensorflow is None:
        return None
    folder = os.path.dirname(tensorflow) + os.sep
    inside = False
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(folder) or _GENERATED in code.co_filename or code.co_name == "__del__":
            inside = True
        elif not _is_standard(code.co_filename):
            return frame if inside else None
        frame = frame.f_back
    return None


def _is_standard(path: str) -> bool:
    return path.startswith("<frozen") or (path.startswith(_STANDARD_LIBRARY) and not path.startswith(_INSTALLED))
