"""Runs the user's program in a task, as `python script.py` or `python -m module` would."""

import atexit
import os
import runpy
import signal
import sys
import threading
import traceback
from types import TracebackType
from typing import Any, NoReturn

from tfdist.errors import ClusterError


def run(program: dict[str, Any]) -> NoReturn:
    """Runs a program as `execute` does, and ends the process with its exit code.

    Threads and exit functions are waited for and run as at the end of any program. Then the process ends at once: taking
    TensorFlow apart piece by piece, in dozens of processes at the same time, takes longer than starting them.
    """
    try:
        execute(program)
        code: Any = 0
    except SystemExit as end:
        code = end.code
        if code not in (None, 0):
            # Exit functions learn from these that the program failed, as they do after an exception.
            sys.last_type, sys.last_value = getattr(sys, "last_type", SystemExit), getattr(sys, "last_value", end)
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]  # As multiprocessing ends its forked processes.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass  # Nobody reads any more.
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def execute(program: dict[str, Any]) -> None:
    """Runs `{"script": PATH | "module": NAME | "serve": True, "args": [...]}` as the main program of this process.

    Raises:
        SystemExit: with 1 for an exception, whose traceback is printed from the program's own first line on; with 2 for a
            `ClusterError`, whose one line is printed; with 130 for Ctrl-C; with what the program gave to `sys.exit`.
    """
    try:
        if program.get("serve"):
            from tfdist.create_strategy import strategy

            strategy()
        elif "module" in program:
            sys.argv = [program["module"], *program["args"]]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(program["module"], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [program["script"], *program["args"]]
            sys.path.insert(0, os.path.dirname(os.path.abspath(program["script"])))
            runpy.run_path(program["script"], run_name="__main__")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # The program has had its chance to save; nobody asked for a traceback.
    except ClusterError as error:
        print(f"tfdist: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        # As the interpreter itself does with the exception that ends a program; exit functions look at it.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        traceback.print_exception(type(error), error, _own_part(error.__traceback__))
        sys.exit(1)


def _own_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this file and of runpy that are above the program's."""
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        part = part.tb_next
    return part or trace
