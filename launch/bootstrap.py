"""Runs the user's program in a task, as `python script.py` or `python -m module` would."""

import os
import runpy
import signal
import sys
import traceback
from types import TracebackType
from typing import Any

from tfdist.errors import ClusterError


def run(program: dict[str, Any]) -> None:
    """Runs `{"script": PATH | "module": NAME | "serve": True, "args": [...]}` as the main program of this process.

    An exception ends the process with 1 and its traceback, from the program's own first line on; a `ClusterError` with 2 and
    its one line; Ctrl-C with 130.
    """
    try:
        if program.get("serve"):
            from tfdist.roles import strategy

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
