"""Runs the launcher with a fork server that does not import TensorFlow, for programs that do not need it.

The fork server is a fork of the launcher, because another Python would import all of it again. With TFDIST_TEST_EXEC=1 it is a
Python of its own, as the fork server of users is; likewise with the next two.

TFDIST_TEST_FILES=1 lets the launcher open no further file once the fork server has started, and 0 none for it.
TFDIST_TEST_FAULT=1 makes the fork server fail. TFDIST_TEST_STOPPED is how many seconds a task may stay stopped.
TFDIST_TEST_THREADS is how many threads may be started, as under a limit of a container.

When the launcher knows that all tasks listen, it makes the file `all-listen` in its folder, and when it has read new progress
`progress-read`, for programs that wait for it: see `listening.py`.
"""

import atexit
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from tfdist.launch.backends.local import fork_server, processes

FORK_SERVER = """
import os, tfdist.launch.backends.local.fork_server as f
def fault(self): raise RuntimeError("a fault of this test")
if os.environ.get("TFDIST_TEST_FAULT"): f.ForkServer.serve = fault
f.PRELOAD = ()
f.main()
"""


def open_no_more():
    free = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


class QuickPopen(subprocess.Popen):
    def __init__(self, command, **options):
        code = command.index("-c") + 1
        program = command[code].rpartition("main()")[0] + FORK_SERVER
        if os.environ.get("TFDIST_TEST_FILES") == "0":
            open_no_more()
        super().__init__([*command[:code], program, *command[code + 1 :]], **options)
        if os.environ.get("TFDIST_TEST_FILES") == "1":
            open_no_more()

    def _execute_child(self, command, *options):
        if any(os.environ.get(f"TFDIST_TEST_{name}") for name in ("EXEC", "FILES", "FAULT")):
            super()._execute_child(command, *options)
            return
        owners, environ, pipes = options[3], options[5], options[9:15]
        self.pid = os.fork()
        if not self.pid:
            _become_fork_server(command[command.index("-c") + 2 :], environ, owners, (pipes[0], pipes[3], pipes[5]))
        self._child_created = True
        self._close_pipe_fds(*pipes)


def _become_fork_server(arguments, environ, owners, standard):
    """Makes this fork what `python -c PROGRAM ARGUMENTS` is at its start, and runs the fork server."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor not in owners:
                try:
                    os.close(descriptor)
                except OSError:
                    pass  # That of the folder /proc/self/fd.
        os.environ.clear()
        os.environ.update(environ)
        tempfile.tempdir = None  # It was chosen by the environment before.
        atexit._clear()
        sys.argv = ["-c", *arguments]
        fork_server.PRELOAD = ()
        fork_server.main()
        sys.stdout.flush()
    finally:
        os._exit(0)


def say_when_all_listen():
    """Makes the file for programs that wait until the launcher takes them for started; another attempt begins without it."""
    ready, listening, file = Startup.ready, Startup.listening, Path("all-listen").absolute()

    def forgets(startup, cluster):
        file.unlink(missing_ok=True)
        ready(startup, cluster)

    def says(startup, name):
        listening(startup, name)
        if not startup.missing:
            file.touch()

    Startup.ready, Startup.listening = forgets, says


def say_when_progress_is_read():
    """Makes the file for programs that wait until the launcher knows how far they are."""
    read, file = TrainingWatch.read, Path("progress-read").absolute()

    def says(watch):
        if (progress := read(watch)) is not None:
            file.touch()
        return progress

    TrainingWatch.read = says


def limit_threads(left):
    """Lets this process start so many threads and no more."""
    start, numbers = threading.Thread.start, iter(range(left))

    def start_if_left(thread):
        if next(numbers, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = start_if_left


def make_quick():
    processes.subprocess = type(sys)("subprocess")
    processes.subprocess.__dict__.update(vars(subprocess), Popen=QuickPopen)


if __name__ == "__main__":
    from tfdist.launch.commands import run  # An agent does not need it.
    from tfdist.launch.supervision import supervisor
    from tfdist.launch.supervision.startup import Startup
    from tfdist.launch.supervision.training_watch import TrainingWatch

    make_quick()
    say_when_all_listen()
    say_when_progress_is_read()
    if "TFDIST_TEST_THREADS" in os.environ:
        limit_threads(int(os.environ["TFDIST_TEST_THREADS"]))
    supervisor.STOPPED_SECONDS = float(os.environ.get("TFDIST_TEST_STOPPED", supervisor.STOPPED_SECONDS))
    sys.exit(run(["run", *sys.argv[1:]]))
