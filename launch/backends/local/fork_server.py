"""Runs as `python -m tfdist.launch.backends.local.fork_server FD [FOLDER]`: imports TensorFlow once and forks every task.

Importing TensorFlow takes seconds and hundreds of megabytes. A fork of a process that imported it takes milliseconds and shares
the memory. The fork server of the standard library (multiprocessing) does the same, but when the launcher is killed it does not
end the tasks and the processes that they started. This one adopts and ends them.

The fork server talks with its owner over a Unix socket (SOCK_SEQPACKET, short JSON messages, descriptors beside them). When the
owner closes the socket or dies, the fork server ends every task and itself, and removes FOLDER.

    owner -> server   {"start": NAME}   with three descriptors: a file with {"env": {...}, "cwd": DIR, "program": {...}},
                                        standard output, standard error
                      {"signal": NUMBER, "tasks": [NAME, ...]}
    server -> owner   {"ready": true}   {"exited": NAME, "code": CODE, "time": SECONDS}   {"failed": TEXT}
                      {"stopped": NAME, "pid": PID, "signal": NUMBER}   "signal" is null when the process resumes
"""

import ctypes
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from tfdist.launch.backends.local.run_program import run
from tfdist.launch.job import Program

PRELOAD = (
    "tensorflow",
    "keras",
    "tfdist.strategies.parameter_server.strategy",
    "tfdist.strategies.runtime.server",
    "tfdist.strategies.default",
)
MESSAGE_BYTES = 1 << 16

GRACE_SECONDS = 2.0
"""How long tasks may take to end after SIGTERM, before SIGKILL."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class ForkServer:
    """The loop of the fork server: forks tasks, forwards signals to them, and reports their exits."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._owner_pid = os.getppid()
        self._running: dict[int, str] = {}  # pid -> task name

    def serve(self) -> Callable[[], None] | None:
        """Serves until the owner is gone, then returns None. Returns the program to run in a forked task."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # Processes that a task leaves behind become children of this process.
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        os.set_blocking(read_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(ignored, signal.SIG_IGN)  # The owner decides when to end.
        with selectors.DefaultSelector() as selector:
            selector.register(self._owner, selectors.EVENT_READ)
            selector.register(read_end, selectors.EVENT_READ)
            # Children of the owner may have inherited its end of the socket, which then outlives the owner.
            owner_process = os.pidfd_open(self._owner_pid)
            selector.register(owner_process, selectors.EVENT_READ)
            self._report({"ready": True})
            while True:
                for key, _ in selector.select():
                    if key.fd == read_end:
                        os.read(read_end, 4096)
                        self._reap()
                        continue
                    message, descriptors = (None, []) if key.fd == owner_process else self._receive()
                    if message is None:
                        self._end_all()
                        return None
                    if "start" in message:
                        program = self._start(message, descriptors)
                        if program is not None:
                            return program
                    else:
                        self._signal(message["tasks"], message["signal"])

    def _receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._owner, MESSAGE_BYTES, 3)
        except OSError:
            return None, []
        return (json.loads(data) if data else None), descriptors

    def _report(self, message: dict[str, Any]) -> None:
        try:
            self._owner.sendall(json.dumps(message).encode())
        except OSError:
            pass  # The owner is gone; the loop reads the end of its socket next.

    def _start(self, message: dict[str, Any], descriptors: list[int]) -> Callable[[], None] | None:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._running[pid] = message["start"]
            for descriptor in descriptors:
                os.close(descriptor)
            return None
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._owner.close()
        with os.fdopen(descriptors[0], encoding="utf-8") as file:
            task = json.load(file)
        for descriptor, standard in zip(descriptors[1:], (1, 2), strict=True):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        os.environ.update(task["env"])
        os.chdir(task["cwd"])
        return lambda: run(Program(**task["program"]))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                if pid in self._running:
                    number = os.WSTOPSIG(status) if os.WIFSTOPPED(status) else None
                    self._report({"stopped": self._running[pid], "pid": pid, "signal": number})
                continue
            name = self._running.pop(pid, None)  # None: a process that a task left behind.
            if name is not None:
                self._report({"exited": name, "code": os.waitstatus_to_exitcode(status), "time": time.time()})

    def _signal(self, names: list[str], number: int) -> None:
        for pid, name in self._running.items():
            if name in names:
                _kill_group(pid, number)

    def _end_all(self) -> None:
        for pid in self._running:
            _kill_group(pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while self._running and time.monotonic() < deadline:
            time.sleep(0.02)
            self._reap()
        for pid in self._running:
            _kill_group(pid, signal.SIGKILL)
        # The processes that the tasks left behind, also those in a session that they created.
        deadline = time.monotonic() + GRACE_SECONDS
        while (children := _children()) and time.monotonic() < deadline:
            for pid in children:
                _kill_group(pid, signal.SIGKILL)
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
            self._reap()


def _kill_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _children() -> list[int]:
    """Returns the ids of the processes whose parent is this one, zombies included."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as stat:
                    parent = int(stat.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if parent == os.getpid():
                found.append(int(entry))
    return found


def main() -> None:
    """Imports TensorFlow, reports that it is ready, and serves."""
    owner = socket.socket(fileno=int(sys.argv[1]))
    try:
        for name in PRELOAD:
            importlib.import_module(name)
    except Exception as error:  # Reports any error of an import: the owner must not wait in vain.
        owner.sendall(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode()[:MESSAGE_BYTES])
        sys.exit(1)
    gc.collect()
    gc.freeze()  # Garbage collections in the tasks then leave the shared pages alone.
    program = ForkServer(owner).serve()
    if program is not None:
        program()
        return
    for folder in sys.argv[2:]:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
