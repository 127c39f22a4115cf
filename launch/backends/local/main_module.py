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
import traceback
import types
from collections.abc import Iterator, Sequence, Set
from typing import Any

_STAYS = (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType, str, bytes, int, float, complex, type(None))
"""What the destructors of other objects use, and what has none of its own."""


_OF_OTHERS = ("site-packages", "dist-packages")
"""Folders of installed packages."""

_modules_before: Set[str] = frozenset()
"""Names of the modules that were there before the program."""


def begin() -> types.ModuleType:
    """Creates an empty `__main__`; returns it."""
    global _modules_before
    _modules_before = frozenset(sys.modules)
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
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11: `python -P`, PYTHONSAFEPATH.
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
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.getcwd())
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def release() -> None:
    """Releases the modules of the program and the exception that has ended it, so that the destructors of their objects run.

    Data goes first, while the functions that destructors call are still there, and that of `__main__` before that of modules
    that it has imported. Nothing of a module goes if a thread runs one of its functions.
    """
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        setattr(sys, name, None)
    main = sys.modules.pop("__main__", None)
    if main is not None and not _is_in_use(main.__dict__):
        _drop_data(main.__dict__)
    del main
    for module in reversed(list(_of_program())):
        if not _is_in_use(module.__dict__):
            _drop_data(module.__dict__)
    gc.collect()
    _close_hdf5_files()


def _of_program() -> Iterator[types.ModuleType]:
    """Yields the modules that the program has imported and that are no installed packages, in the order of their imports."""
    standard = os.path.dirname(os.__file__)
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name in _modules_before or name.partition(".")[0] == "tfdist" or not isinstance(path, str):
            continue
        if not path.startswith(standard + os.sep) and not any(part in _OF_OTHERS for part in path.split(os.sep)):
            yield module


def _close_hdf5_files() -> None:
    """Closes the files of HDF5 that something still refers to. The library does that when a process ends in the usual way."""
    h5py = sys.modules.get("h5py")
    if h5py is None:
        return
    for handle in h5py.h5f.get_obj_ids(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE):
        try:
            h5py.File(handle).close()
        except Exception:  # A full disk, for example. The others are closed.
            traceback.print_exc()


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
