"""Runs the program of a task in a forked process, as `python SCRIPT` or `python -m MODULE` would, or a server alone."""

import atexit
import faulthandler
import os
import runpy
import signal
import sys
import threading
import traceback
from types import TracebackType
from typing import Any, NoReturn

from tfdist.errors import ClusterError, UnsupportedVersionError
from tfdist.launch.job import Program
from tfdist.process_cluster import current_cluster
from tfdist.strategies.runtime import server
from tfdist.strategies.runtime.streams import flush_streams

CHIEF_SECONDS = 300.0
"""How long a server without a program waits for its chief. It ends earlier when the process that started it ends."""


def run(program: Program) -> NoReturn:
    """Runs a program like `execute`, then ends the process with the program's exit code.

    Threads are joined and exit functions run, as at the end of any program. Then the process ends at once: the regular teardown
    of TensorFlow, in dozens of processes at the same time, takes longer than their start.
    """
    try:
        execute(program)
        code: Any = 0
    except SystemExit as end:
        code = end.code
        if code not in (None, 0):
            # Exit functions read these to learn that the program failed. After an exception they are set already.
            sys.last_type, sys.last_value = getattr(sys, "last_type", SystemExit), getattr(sys, "last_value", end)
    if not (code is None or isinstance(code, int)):
        print(code, file=sys.stderr)  # As Python does.
    threading._shutdown()  # type: ignore[attr-defined]  # As multiprocessing ends its forked processes.
    atexit._run_exitfuncs()
    flush_streams()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def execute(program: Program) -> None:
    """Runs `program` as the main program of this process.

    Raises:
        SystemExit: with 1 after an exception, whose traceback is printed from the program's first line on; with 2 after a
            `ClusterError` or an `UnsupportedVersionError`, which is printed as one line; with 130 after Ctrl-C; with the
            argument of `sys.exit`.
    """
    faulthandler.register(signal.SIGQUIT, file=2)  # The launcher sends it to a task that hangs.
    faulthandler.enable(file=2)  # A library that crashes says nothing else.
    try:
        if program.script is not None:
            sys.argv = [program.script, *program.args]
            sys.path.insert(0, os.path.dirname(os.path.abspath(program.script)))
            runpy.run_path(program.script, run_name="__main__")
        elif program.module is not None:
            sys.argv = [program.module, *program.args]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(program.module, run_name="__main__", alter_sys=True)
        else:
            cluster = current_cluster()
            assert cluster.task is not None  # TF_CONFIG, which every started task has, names it.
            server.serve(cluster.addressed(), cluster.find(*cluster.task), CHIEF_SECONDS)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # The program had its chance to save; a traceback would not help.
    except (ClusterError, UnsupportedVersionError) as error:
        print(f"tfdist: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        # The interpreter sets these for an exception that ends a program; exit functions read them.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        traceback.print_exception(type(error), error, _program_traceback(error.__traceback__))
        sys.exit(1)


def _program_traceback(trace: TracebackType | None) -> TracebackType | None:
    """Returns the traceback without the frames of this file and of runpy above the program's own frames."""
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        part = part.tb_next
    return part or trace
