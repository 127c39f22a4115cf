"""Processes below this one: which there are, and how the ones that others have left behind are ended.

A process whose parent ends becomes a child of the nearest subreaper above it (prctl(2), PR_SET_CHILD_SUBREAPER), which can then
end it. The fork server is one for what tasks leave behind; the launcher is one in case the fork server itself is killed.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Set

from tfdist.machine import process_fields

END_SECONDS = 2.0
"""How long `end_children` tries: each round may set free the children of those that it kills."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>


def become_subreaper() -> None:
    """Makes this process the parent of processes below it that lose theirs."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def children() -> dict[int, int]:
    """Returns the children of this process, zombies included: process id -> process group."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            parent, group = parent_and_group(int(entry))
            if parent == os.getpid():
                found[int(entry)] = group
    return found


def parent_and_group(pid: int) -> tuple[int, int]:
    """Returns the parent and the process group of a process; zeros if there is no such process."""
    fields = process_fields(pid)
    return (int(fields[1]), int(fields[2])) if fields else (0, 0)


def is_stopped(pid: int) -> bool:
    """Returns whether a signal or a debugger has stopped a process."""
    return process_fields(pid)[:1] in (["T"], ["t"])


def end_children(spared: Set[int], reap: Callable[[], object]) -> None:
    """Kills the children of this process, except `spared`, those that become its children thereby, and their process groups.

    `reap` is called after each round, and waits for children that have ended.
    """
    deadline = time.monotonic() + END_SECONDS
    while (left := children().keys() - spared) and time.monotonic() < deadline:
        for pid in left:
            kill_group(pid, signal.SIGKILL)  # It has one if it is its leader.
            kill_process(pid, signal.SIGKILL)
        time.sleep(0.02)
        reap()


def kill_group(pid: int, number: int) -> None:
    """Sends a signal to the process group of this number, if it exists."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def kill_process(pid: int, number: int) -> None:
    """Sends a signal to the process of this number, if it exists."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
