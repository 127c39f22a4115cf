"""Runs with the arguments FD SECONDS [FOLDER ...] in a process of its own: imports TensorFlow once and forks every task.

Importing TensorFlow takes seconds and hundreds of megabytes. A fork of a process that imported it takes milliseconds and shares
the memory. The fork server of the standard library (multiprocessing) does the same, but when the launcher is killed it does not
end the tasks and the processes that they started. This one adopts and ends them.

The fork server talks with its owner over a Unix socket (SOCK_SEQPACKET, short JSON messages, descriptors beside them). When the
owner closes the socket or dies, the fork server ends every task and itself, and removes FOLDER. It does the same, and kills the
owner, if a signal has stopped the owner for SECONDS: its launcher has then taken this agent for lost. With 0 seconds it does
not: who stops the launcher itself wants to go on later.

    owner -> server   {"start": NAME, "hold": WHEN}   with three descriptors: a file with {"env": {...}, "cwd": DIR,
                                        "program": {...}}, standard output, standard error. With "always" only a SIGTERM of
                                        the fork server ends the task, unless its program has a handler; with "everybody"
                                        if the fork server has got SIGTERM, too; with "never" any does
                      {"signal": NUMBER, "tasks": [NAME, ...]}
                      {"clear": true}   ends every task; answered by "cleared"
                      {"remove": [FOLDER, ...]}   begins another job, with these folders; answered by "ready"
    server -> owner   {"ready": true}   {"cleared": true}   {"event": KIND, ...} for `from_json` of jobs/events.py
"""

import gc
import importlib
import json
import mmap
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any, NoReturn

from tfdist.errors import UnsupportedVersionError
from tfdist.launch.backends.local import memory_kills
from tfdist.launch.backends.local.descendants import (
    become_subreaper,
    children,
    die_with_parent,
    end_children,
    is_stopped,
    kill_group,
    kill_process,
    parent_and_group,
)
from tfdist.launch.backends.local.guard import FOR_THE_PROGRAM, continue_below_guard
from tfdist.launch.backends.local.run_program import run
from tfdist.launch.jobs.events import Exited, Lost, NotStarted, Started, Stopped, as_json
from tfdist.launch.jobs.job import Program
from tfdist.launch.jobs.running_time import RunningTime

PRELOAD = (
    "tfdist.strategies.versions",  # First: it refuses versions that cannot be imported together.
    "tensorflow",
    "keras",
    "tfdist.strategies.private_api",  # Before those that use its names: it refuses versions that lack one.
    "tfdist.strategies.parameter_server.strategy",
    "tfdist.strategies.runtime.server",
    "tfdist.strategies.default",
    "tfdist.strategies.data_parallel.multi_worker_mirrored",
    "tfdist.strategies.checkpoint.atomic_saving",
    "tfdist.strategies.checkpoint.job_backup",
)
MESSAGE_BYTES = 1 << 16

GRACE_SECONDS = 2.0
"""How long tasks may take to end after SIGTERM, before SIGKILL."""

OWNER_POLL_SECONDS = 1.0
"""How often the fork server looks whether its owner is there, where `os.pidfd_open` is missing, and whether it is stopped."""

EVERYBODY_SECONDS = 1.0
"""How long a task waits for a sign that SIGTERM was sent to everybody, before it ends by it."""

OWNER_GONE = -1
"""In place of a descriptor that can be read."""

GONE = "the parent process of all tasks is gone: "
"""Begins the sentence that says why."""


@dataclass
class _Process:
    """What is known of a process of a task, until it has ended."""

    task: str
    hold: mmap.mmap | None = None  # Memory shared with one that holds SIGTERM back: a byte, 1 at its end.
    is_asked: bool = False  # It got SIGTERM.
    is_killed: bool = False  # For the owner.


class ForkServer:
    """The loop of the fork server: forks tasks, forwards signals to them, and reports their exits."""

    def __init__(
        self, owner: socket.socket, owner_pid: int, folders: list[str], longest_stop: float, handlers: dict[signal.Signals, Any]
    ) -> None:
        self.folders = folders  # To be removed at the end.
        self._owner = owner
        self._owner_pid = owner_pid
        self._longest_stop = longest_stop
        self._clock = RunningTime()
        self._owner_ran_at = self._clock()
        self._running: dict[int, _Process] = {}  # By process id.
        self._groups: dict[str, int] = {}  # Task name -> the process group of its latest process.
        self._everybody = mmap.mmap(-1, 1)  # Shared with all tasks: 1 after a SIGTERM to this process, as for all of a job.
        self._memory_kills = memory_kills.count()
        self._handlers = handlers  # Of tasks, for signals that this process ignores from its start.

    def serve(self) -> Callable[[], None] | None:
        """Serves until the owner is gone, then returns None. Returns the program to run in a forked task."""
        become_subreaper()  # Processes that a task leaves behind become children of this process.
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        os.set_blocking(read_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(ignored, signal.SIG_IGN)  # The owner decides when to end.
        signal.signal(signal.SIGTERM, lambda *_: self._everybody.__setitem__(0, 1))
        with selectors.DefaultSelector() as selector:
            selector.register(self._owner, selectors.EVENT_READ)
            selector.register(read_end, selectors.EVENT_READ)
            # Children of the owner may have inherited its end of the socket, which then outlives the owner.
            owner_process = _descriptor_of(self._owner_pid)
            if owner_process is not None:
                selector.register(owner_process, selectors.EVENT_READ)
            self._report({"ready": True})
            while True:
                polls = owner_process is None or self._longest_stop > 0
                ready = [key.fd for key, _ in selector.select(OWNER_POLL_SECONDS if polls else None)]
                if owner_process is None and parent_and_group(os.getppid())[0] != self._owner_pid:
                    ready = [OWNER_GONE]  # The guard, which is the parent of this process, has another parent.
                if self._has_stopped_owner():
                    kill_process(self._owner_pid, signal.SIGKILL)
                    ready = [OWNER_GONE]
                for descriptor in ready:
                    if descriptor == read_end:
                        os.read(read_end, 4096)
                        self._reap()
                        continue
                    message, descriptors = (None, []) if descriptor in (owner_process, OWNER_GONE) else self._receive()
                    if message is None:
                        self._end_all()
                        return None
                    if (program := self._obey(message, descriptors)) is not None:
                        return program

    def _obey(self, message: dict[str, Any], descriptors: list[int]) -> Callable[[], None] | None:
        """Does what a message of the owner says. Returns the program to run in a task that it has forked."""
        if "start" in message:
            return self._start(message, descriptors)
        if "clear" in message:
            self._end_all()
            self._groups.clear()
            self._report({"cleared": True})
        elif "remove" in message:
            self.folders = message["remove"]
            self._everybody[0] = 0
            self._report({"ready": True})
        else:
            self._signal(message["tasks"], message["signal"])
        return None

    def _has_stopped_owner(self) -> bool:
        """Returns whether the owner has been stopped for so long that its launcher has taken it for lost."""
        now = self._clock()  # This process may be stopped, too.
        if not (self._longest_stop and is_stopped(self._owner_pid)):
            self._owner_ran_at = now
        return now - self._owner_ran_at > self._longest_stop

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
        """Forks a task. Returns None here, and in the task what it runs."""
        name = message["start"]
        self._end_rest_of(name)
        parent = os.getpid()
        try:
            if len(descriptors) < 3:  # The kernel passes on as many as this process may open.
                raise OSError(f"only {len(descriptors)} of its 3 files could be opened (ulimit -n)")
            hold = mmap.mmap(-1, 1) if message["hold"] != "never" else None
            pid = os.fork()
        except OSError as error:
            self._report(as_json(NotStarted(name, note=str(error))))
            pid = -1
        if pid == 0:
            return self._become_task(parent, hold, message["hold"] == "always", descriptors)
        if pid > 0:
            self._running[pid] = _Process(name, hold)
            self._groups[name] = pid
            self._report(as_json(Started(name, pid)))
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def _become_task(
        self, parent: int, hold: mmap.mmap | None, is_always_held: bool, descriptors: list[int]
    ) -> Callable[[], None]:
        """Makes this process, which was just forked, a task, and returns what it runs.

        Args:
            parent: the process id of the fork server.
            hold: see `_hold_back`; None if SIGTERM always ends the task.
            is_always_held: whether SIGTERM is held back even if all tasks get it.
            descriptors: a file with the description of the task, then its standard output and error.
        """
        os.setsid()
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        for requested, handler in self._handlers.items():
            signal.signal(requested, handler)
        if hold is not None:
            _hold_back(hold, b"\1" if is_always_held else self._everybody)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._owner.close()
        with os.fdopen(descriptors[0], encoding="utf-8") as file:
            task = json.load(file)
        for descriptor, standard in zip(descriptors[1:], (1, 2), strict=True):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        # Else what a program prints would wait in the buffer of the fork server's stream, and be lost if the task is killed.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.environ.update(task["env"])
        os.chdir(task["cwd"])
        return lambda: run(Program(**task["program"]))

    def _reap(self) -> None:
        asked = set()
        for pid, status in _changes():
            process = self._running.get(pid)
            if process is None:
                continue  # A task has left it behind.
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                number = os.WSTOPSIG(status) if os.WIFSTOPPED(status) else None
                self._report(as_json(Stopped(process.task, pid, number)))
                continue
            del self._running[pid]
            if process.is_asked:
                asked.add(pid)
            code = os.waitstatus_to_exitcode(status)
            note = self._why_killed(pid) if code == -signal.SIGKILL and not process.is_killed else ""
            self._report(as_json(Exited(process.task, code, note)))
        _signal_rest(asked, signal.SIGTERM)

    def _why_killed(self, pid: int) -> str:
        before, self._memory_kills = self._memory_kills, memory_kills.count()
        return memory_kills.explanation(pid, before, self._memory_kills, memory_kills.kernel_log())

    def _end_rest_of(self, name: str) -> None:
        """Kills what an earlier process of this task has left in its process group: it may hold its port or its GPUs."""
        group = self._groups.pop(name, None)
        _signal_rest({group} if group is not None else set(), signal.SIGKILL)

    def _signal(self, names: list[str], number: int) -> None:
        for pid, process in self._running.items():
            if process.task in names:
                self._signal_task(pid, number)

    def _signal_task(self, pid: int, number: int) -> None:
        """Sends a signal to a task: to its process group, or, while the program may still save, to its process alone.

        The next step may need the processes that read its data. They get SIGTERM when the task has ended.
        """
        process = self._running[pid]
        is_request = number == signal.SIGTERM and not process.is_asked
        if number == signal.SIGTERM:
            process.is_asked = True
            if process.hold is not None:
                process.hold[0] = 1
        elif number == signal.SIGKILL:
            process.is_killed = True
        if is_request or number in FOR_THE_PROGRAM:
            kill_process(pid, number)
        else:
            kill_group(pid, number)

    def _end_all(self) -> None:
        for pid in self._running:
            self._signal_task(pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while self._running and time.monotonic() < deadline:
            time.sleep(0.02)
            self._reap()
        for pid in self._running:
            kill_group(pid, signal.SIGKILL)
        # Also the processes that the tasks left behind, even in a session that they created.
        end_children(spared=set(), reap=self._reap)
        self._running.clear()  # One that a driver or a file system does not let go may end when the name is that of another.


def _hold_back(hold: mmap.mmap, everybody: mmap.mmap | bytes) -> None:
    """Makes SIGTERM end this process only if the first byte of `hold` is 1, or that of `everybody` stays 0.

    Processes that it starts are not concerned.
    """

    def handle(number: int, frame: object) -> None:
        deadline = time.monotonic() + EVERYBODY_SECONDS
        while not (hold[0] or everybody[0]) and time.monotonic() < deadline:
            time.sleep(0.01)
        if hold[0] or not everybody[0]:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)

    def restore() -> None:
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, handle)
    os.register_at_fork(after_in_child=restore)


def _descriptor_of(pid: int) -> int | None:
    """Returns a descriptor that can be read when a process has ended; None where there are none."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):  # Also if it has ended already.
        return None


def _changes() -> Iterator[tuple[int, int]]:
    """Yields the process id and the status of each child that has ended, stopped or resumed."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _signal_rest(groups: Set[int], number: int) -> None:
    """Sends a signal to what tasks that have ended have left in their process groups."""
    for group in groups & set(children().values()) if groups else ():  # Else the number may be that of another group by now.
        kill_group(group, number)


def _fail(owner: socket.socket, error: Exception) -> NoReturn:
    """Tells the owner why, and ends at once: the regular teardown of TensorFlow may take longer than the owner waits."""
    most = MESSAGE_BYTES // 8  # In JSON one character may take six.
    if isinstance(error, UnsupportedVersionError):
        lost = Lost(str(error)[:most], refused=True)
    else:
        lost = Lost(f"{GONE}{type(error).__name__}: {error}"[:most])
        traceback.print_exception(error)
    try:
        owner.sendall(json.dumps(as_json(lost)).encode())
    except OSError:
        pass  # The owner is gone.
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    """Imports TensorFlow, reports that it is ready, and serves."""
    owner, owner_pid = socket.socket(fileno=int(sys.argv[1])), os.getppid()
    continue_below_guard(owner)
    # A signal for the program may come before a task runs.
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in FOR_THE_PROGRAM}
    gc.disable()  # The imports leave no garbage, and looking for it takes a tenth of their time.
    try:
        for name in PRELOAD:
            importlib.import_module(name)
    except Exception as error:  # Reports any error of an import: the owner must not wait in vain.
        _fail(owner, error)
    gc.collect()
    gc.freeze()  # Garbage collections in the tasks then leave the shared pages alone.
    gc.enable()
    try:
        server = ForkServer(owner, owner_pid, sys.argv[3:], float(sys.argv[2]), handlers)
        program = server.serve()
    except Exception as error:
        _fail(owner, error)
    if program is not None:
        program()
        return
    kill_process(os.getppid(), signal.SIGCONT)  # The guard, if it was stopped: it would stay, and this process as a zombie.
    for folder in server.folders:
        shutil.rmtree(folder, ignore_errors=True)
