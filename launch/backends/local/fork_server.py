"""One process that has imported TensorFlow and forks every task: `python -m tfdist.launch.backends.local.fork_server FD [FOLDER]`.

Importing TensorFlow takes seconds and hundreds of megabytes; a fork of a process that has only imported it takes milliseconds
and shares them. The standard library's forkserver does this too, but does not adopt and end what the tasks leave behind when
the launcher is killed, which is why this one exists.

It talks with its owner over a Unix socket (SOCK_SEQPACKET, short JSON messages, descriptors beside them). When the owner closes
the socket, or dies, it ends every task and itself, and removes FOLDER.

    owner -> server   {"start": NAME}   and three descriptors: a file with {"env": {...}, "cwd": DIR, "program": {...}},
                                        standard output, standard error
                      {"signal": NUMBER, "tasks": [NAME, ...]}
    server -> owner   {"ready": true}   {"exited": NAME, "code": CODE, "time": SECONDS}   {"failed": TEXT}
                      {"stopped": NAME, "pid": PID, "signal": NUMBER}   where it goes on, "signal" is null
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

PRELOAD = (
    "tensorflow",
    "keras",
    "tfdist.strategies.parameter_server.strategy",
    "tfdist.strategies.runtime.server",
    "tfdist.strategies.default",
)
MESSAGE_BYTES = 1 << 16
GRACE_SECONDS = 2.0

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class ForkServer:
    """The loop of the fork server: starts tasks, passes signals on, tells who exited."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._owner_pid = os.getppid()
        self._running: dict[int, str] = {}  # pid -> task name

    def serve(self) -> Callable[[], None] | None:
        """Serves until the owner is gone; returns None then. In a forked task returns the program to run."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # What a task leaves behind becomes a child of this process.
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        os.set_blocking(read_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(ignored, signal.SIG_IGN)  # The owner decides; its end is told by the socket.
        with selectors.DefaultSelector() as selector:
            selector.register(self._owner, selectors.EVENT_READ)
            selector.register(read_end, selectors.EVENT_READ)
            # The owner's children may have inherited its end of the socket: that it lives on does not mean that the owner does.
            owner_process = os.pidfd_open(self._owner_pid)
            selector.register(owner_process, selectors.EVENT_READ)
            self._tell({"ready": True})
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

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._owner.sendall(json.dumps(message).encode())
        except OSError:
            pass  # The owner is gone; the loop sees its end of the socket next.

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
        from tfdist.launch.backends.local import run_program

        return lambda: run_program.run(task["program"])

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
                    self._tell({"stopped": self._running[pid], "pid": pid, "signal": number})
                continue
            name = self._running.pop(pid, None)  # None: an orphan of a task
            if name is not None:
                self._tell({"exited": name, "code": os.waitstatus_to_exitcode(status), "time": time.time()})

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
        # Whatever still runs below this process: orphans of tasks, also those that made a session of their own.
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
    """Process ids whose parent is this process (those already ended and not reaped included)."""
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
    """Imports TensorFlow, says that it is ready, and serves."""
    owner = socket.socket(fileno=int(sys.argv[1]))
    try:
        for name in PRELOAD:
            importlib.import_module(name)
    except Exception as error:  # Whatever importing raises, the owner should hear it rather than wait.
        owner.sendall(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode()[:MESSAGE_BYTES])
        sys.exit(1)
    gc.collect()
    gc.freeze()  # Collections in the tasks then leave the shared pages alone.
    program = ForkServer(owner).serve()
    if program is not None:
        program()
        return
    for folder in sys.argv[2:]:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
