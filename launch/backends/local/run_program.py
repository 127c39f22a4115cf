"""Runs the program of a task in a forked process, as `python SCRIPT` or `python -m MODULE` would, or a server alone."""

import atexit
import faulthandler
import os
import runpy
import signal
import sys
import threading
import time
from types import TracebackType
from typing import Any, NoReturn

from tfdist.errors import ClusterError, UnsupportedVersionError
from tfdist.launch.backends.local import main_module
from tfdist.launch.jobs.ending_signals import ending_signals
from tfdist.launch.jobs.job import Program
from tfdist.process_cluster import current_cluster
from tfdist.strategies.checkpoint.environment import FOLDER
from tfdist.strategies.runtime import save_signal, server
from tfdist.strategies.runtime.streams import flush_streams

CHIEF_SECONDS = 300.0
"""How long a server without a program waits for its chief. It ends earlier when the process that started it ends."""

RELEASE_SECONDS = 60.0
"""How long the destructors of a program may take, and the writing of its open files. Those of TensorFlow may wait for a task
that has gone, and nothing else limits the end of a program that has succeeded."""

FAILED_RELEASE_SECONDS = 5.0
"""The same for a program that has failed, whose job waits to be ended or started again."""

STACKS_SECONDS = 15.0
"""How much later a process ends in which even that limit does not work, because a library lets no other thread run."""


def run(program: Program) -> NoReturn:
    """Runs a program like `execute`, then ends the process with the program's exit code.

    Threads are joined, exit functions run, and what the program has left open is closed, as at the end of any program. Then the
    process ends at once: the regular teardown of TensorFlow, in dozens of processes at the same time, takes longer than their
    start.
    """
    process = os.getpid()
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
    status = code & 0xFF if isinstance(code, int) else 0 if code is None else 1  # As the kernel takes it.
    # A fork of the program has none of TensorFlow's threads, for which destructors would wait.
    if os.getpid() == process and _limit_release(status):
        _drop_handlers()
        flush_streams()
        main_module.release()
    flush_streams()
    os._exit(status)


def execute(program: Program) -> None:
    """Runs `program` as the main program of this process.

    Raises:
        SystemExit: with 1 after an exception, which `sys.excepthook` shows with its traceback from the program's first line on;
            with 2 after a `ClusterError` or an `UnsupportedVersionError`, which is printed as one line; with 130 after Ctrl-C;
            with the argument of `sys.exit`.
    """
    faulthandler.register(signal.SIGQUIT, file=2)  # The launcher sends it to a task that hangs.
    faulthandler.enable(file=2)  # A library that crashes says nothing else.
    if program.script is not None or program.module is not None:
        sys.orig_argv = program.command(sys.executable)  # For a program that starts itself again.
    if os.environ.get(FOLDER):
        save_signal.outlive()
    try:
        if "keras" in sys.modules:  # The fork server has imported it.
            _share_downloads()
        if program.script is not None:
            main_module.run_script(program.script, program.args)
        elif program.module is not None:
            main_module.run_module(program.module, program.args)
        else:
            cluster = current_cluster()
            assert cluster.task is not None  # TF_CONFIG, which every started task has, names it.
            server.serve(cluster.addressed(), cluster.find(*cluster.task), CHIEF_SECONDS)
    except SystemExit:
        raise
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # The program had its chance to save; a traceback would not help.
    except (ClusterError, UnsupportedVersionError) as error:
        print(f"tfdist: {error}", file=sys.stderr)
        sys.exit(2)
    except BaseException as error:
        _show(error.with_traceback(_program_traceback(error.__traceback__)))
        sys.exit(1)


def _share_downloads() -> None:
    """Lets tasks of a machine fetch the same files at once. A program may do so before it calls `tfdist.strategy()`."""
    from tfdist.strategies.runtime import downloads

    downloads.install()


def _show(error: BaseException) -> None:
    """Shows an exception that ends the program as the interpreter does, which leaves it to a hook of the program."""
    # The interpreter sets these, and exit functions read them.
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.last_exc = error  # type: ignore[attr-defined]  # Python 3.12.
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as fault:
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(fault), fault, fault.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)


def _program_traceback(trace: TracebackType | None) -> TracebackType | None:
    """Returns the part of a traceback below the frames of the launcher and of runpy: those of the program, if any."""
    above = (__file__, main_module.__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in above:
        trace = trace.tb_next
    return trace


def _drop_handlers() -> None:
    """Lets signals do what they do by default, or nothing if they are not to end a task: handlers use what is released."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL if number in ending_signals() else signal.SIG_IGN)


def _limit_release(status: int) -> bool:
    """Makes this process end with `status` after a limit, whatever its other threads do; returns whether it will."""
    limit = FAILED_RELEASE_SECONDS if status else RELEASE_SECONDS

    def end() -> None:
        time.sleep(limit)
        text = f"tfdist: what the program has left open is not closed after {limit:.0f} s; some of it may be lost\n"
        try:
            os.write(2, text.encode())
            flush_streams()
        finally:
            os._exit(status)

    try:
        threading.Thread(target=end, name="tfdist-end", daemon=True).start()
    except RuntimeError:  # Too many threads.
        return False
    faulthandler.dump_traceback_later(limit + STACKS_SECONDS, exit=True, file=2)
    return True
