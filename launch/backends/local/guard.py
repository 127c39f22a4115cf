"""The guard: the process above the fork server, which ends what is left if the fork server and its owner are killed at once.

Tasks die with the fork server (PR_SET_PDEATHSIG), but not the processes that they started. These become children of the nearest
subreaper above: the guard. It is a fork of the fork server from before TensorFlow is imported, so it is small.

If the fork server is stopped when its owner ends, the guard resumes it: it then ends all tasks.
"""

import os
import signal
import socket
from typing import NoReturn

from tfdist.launch.backends.local.descendants import become_subreaper, die_with_parent, end_children, kill_process

OWNER_POLL_SECONDS = 1.0
"""How often the guard looks whether the owner is there."""

FOR_THE_PROGRAM = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals after which a program may go on, with the processes that it has started. Slurm sends them to all of a job."""


def continue_below_guard(owner: socket.socket) -> None:
    """Forks: returns in the child. This process becomes the guard, and ends as the child has ended."""
    become_subreaper()
    owner_pid, parent = os.getppid(), os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        return
    owner.close()  # Its end tells the owner that the fork server is gone.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, *FOR_THE_PROGRAM):
        signal.signal(ignored, signal.SIG_IGN)  # The owner decides when to end.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while (ended := os.waitpid(-1, os.WNOHANG))[0] != pid:
        if ended[0] == 0 and signal.sigtimedwait({signal.SIGCHLD}, OWNER_POLL_SECONDS) is None and os.getppid() != owner_pid:
            kill_process(pid, signal.SIGCONT)
    end_children(spared=set(), reap=_reap)
    _end_as(ended[1])


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _end_as(status: int) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(abs(code))
