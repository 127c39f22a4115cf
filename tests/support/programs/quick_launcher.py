"""Runs the launcher with a fork server that does not import TensorFlow, for programs that do not need it.

TFDIST_TEST_FILES=1 lets the launcher open no further file once the fork server has started, and 0 none for it. TFDIST_TEST_FAULT=1 makes the fork
server fail. TFDIST_TEST_STOPPED is how many seconds a task may stay stopped.
"""

import os
import resource
import subprocess
import sys

from tfdist.launch.backends.local import processes
from tfdist.launch.commands import cli
from tfdist.launch.supervision import supervisor

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


def make_quick():
    processes.subprocess = type(sys)("subprocess")
    processes.subprocess.__dict__.update(vars(subprocess), Popen=QuickPopen)


if __name__ == "__main__":
    make_quick()
    supervisor.STOPPED_SECONDS = float(os.environ.get("TFDIST_TEST_STOPPED", supervisor.STOPPED_SECONDS))
    cli.main()
