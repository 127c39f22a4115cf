"""`__main__` of the program of a task: begun as the interpreter begins it, and released when the program has ended.

`runpy.run_path` and `run_module` release it before the program's threads and exit functions have ended. The interpreter does so
last, and then runs the destructors of what is left. Some of them write: those of HDF5 files, of `TFRecordWriter`, and of
compressed files.
"""

import builtins
import gc
import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any

_STAYS = (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType, str, bytes, int, float, complex, type(None))
"""What the destructors of other objects use, and what has none of its own."""


def begin() -> types.ModuleType:
    """Creates an empty `__main__`; returns it."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main


def run_script(script: str, args: Sequence[str]) -> None:
    """Runs a file, or an archive with a `__main__.py`, as `python SCRIPT ARGS` does."""
    main = begin()
    sys.argv = [script, *args]
    if pkgutil.get_importer(script) is not None:
        sys.path.insert(0, script)
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    path = os.path.join(os.getcwd(), script)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update({"__file__": path, "__cached__": None, "__loader__": loader})
    with io.open_code(path) as file:
        code = pkgutil.read_code(file)  # type: ignore[attr-defined]  # Not None if it is compiled.
    if code is None:
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def run_module(name: str, args: Sequence[str]) -> None:
    """Runs a module as `python -m NAME ARGS` does."""
    begin()
    sys.argv = ["-m", *args]
    sys.path.insert(0, os.getcwd())
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def release() -> None:
    """Releases `__main__` and the exception that has ended the program, so that the destructors of their objects run.

    Data goes first, while the functions that destructors call are still there. Nothing goes if a thread runs a function of the
    program.
    """
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        setattr(sys, name, None)
    main = sys.modules.pop("__main__", None)
    if main is not None and not _is_in_use(main.__dict__):
        _drop_data(main.__dict__)
    del main
    gc.collect()


def _is_in_use(namespace: dict[str, Any]) -> bool:
    """Returns whether another thread runs a function with these globals."""
    for thread, top in sys._current_frames().items():
        frame: types.FrameType | None = top if thread != threading.get_ident() else None
        while frame is not None:
            if frame.f_globals is namespace:
                return True
            frame = frame.f_back
    return False


def _drop_data(namespace: dict[str, Any]) -> None:
    """Drops one object after the other, so that each is destroyed before those that it uses; a collection of all at once may
    close a file before what belongs into it is written. Names with `_` go first, as in the interpreter."""
    for name in sorted(namespace, key=lambda name: not name.startswith("_")):
        if not name.startswith("__") and not issubclass(type(namespace.get(name)), _STAYS):
            namespace[name] = None
