"""Starts `python ARGUMENTS` in forks of one process that has imported TensorFlow, instead of importing it in each of hundreds.

The import takes seconds of processor time. What a test sees is the same: a process with its own session, environment, working
directory and output, that ends with its exit code. A launcher's fork server imports TensorFlow, too; it comes from the same
process. Commands that do not need TensorFlow are forks of another process, which has imported what they need. This file runs as
`python warm.py FD MARK [MODULE ...]`, with a socket to the tests and the names of other modules to import.

A fork keeps the environment of its first process in /proc, so the mark of a test is written over the one there.
"""

import atexit
import ctypes
import gc
import importlib
import io
import json
import multiprocessing.process
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from typing import IO, Any, NoReturn

MESSAGE_BYTES = 1 << 16
PR_SET_PDEATHSIG = 1
UNUSED_SECONDS = 10.0
"""The kernel ends a fork server that a killed program has not used. The program's end is reported after that, at the latest so
many seconds after it."""

libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_void_p
FORK_SERVER = "tfdist.launch.backends.local.fork_server"
PROCESSES = "tfdist.launch.backends.local.processes"
COMMANDS = (
    "tfdist.launch.commands.run_command",
    "tfdist.launch.commands.job_commands",
    "tfdist.launch.commands.scale_command",
    "tfdist.launch.background.background_jobs",
    "tfdist.launch.background.detach",
    "tfdist.launch.backends.local.backend",
    "tfdist.launch.supervision.supervisor",
    "tfdist.launch.terminal.live_view",
    "tfdist.translate",
    PROCESSES,
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "quick_polls.py"),
)
"""What the commands of tfdist import, and a file that is run after it."""


def _sent(message: dict[str, Any], where: socket.socket, *descriptors: int) -> None:
    """Sends a message of any length, in a file, and descriptors."""
    with os.fdopen(os.memfd_create("message"), "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(message, file)
        file.flush()
        file.seek(0)
        socket.send_fds(where, [b"start"], [file.fileno(), *descriptors])


def _received(where: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Returns what `_sent` has sent; None when the other side is gone."""
    data, descriptors, _, _ = socket.recv_fds(where, MESSAGE_BYTES, 4)
    if not data:
        return None
    with os.fdopen(descriptors[0], encoding="utf-8", errors="surrogateescape") as file:
        return json.load(file), descriptors[1:]


# In pytest.


class Process:
    """A started process, as `subprocess.Popen` shows it."""

    def __init__(self, args: Sequence[str], status: socket.socket) -> None:
        self.args, self._status = args, status
        self.pid = int(status.recv(100))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code; waits for it at most `timeout` seconds.

        Raises:
            subprocess.TimeoutExpired: if it still runs then.
        """
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._status.recv(100) or b"-255")  # The process that forks them is gone.
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class PipedProcess(Process):
    """A started process whose output, with what it writes to standard error, comes through the pipe `stdout`."""

    def __init__(self, args: Sequence[str], status: socket.socket, stdout: IO[bytes]) -> None:
        super().__init__(args, status)
        self.stdout = stdout

    def communicate(self, timeout: float) -> tuple[str, None]:
        """Returns all output until its end; kills the process if that takes longer than `timeout` seconds."""
        timer = threading.Timer(timeout, self.kill)
        timer.start()
        output = self.stdout.read().decode(errors="replace")
        timer.cancel()
        self.wait(60)
        return output, None


class WarmPython:
    """The process that forks them. Close it at the end."""

    def __init__(self, mark: str, *modules: str, **variables: str) -> None:
        """Starts it.

        Args:
            mark: the variable that each environment has, with 32 characters.
            modules: what is imported, or run if it is a file, instead of TensorFlow.
            variables: the environment of the import, beside that of this process.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        environ |= {mark: "0" * 32, "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **variables}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), mark, *modules],
            pass_fds=[theirs.fileno()],
            env=environ,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    def start(
        self, arguments: Sequence[str], cwd: str, environ: Mapping[str, str], output: int, errors: int | None = None
    ) -> Process:
        """Starts `python ARGUMENTS` in a new session, with standard output in a file, and standard error in it or in another."""
        status = self._ask_for(arguments, cwd, environ, output, output if errors is None else errors)
        return Process([sys.executable, *arguments], status)

    def start_piped(self, arguments: Sequence[str], cwd: str, environ: Mapping[str, str]) -> PipedProcess:
        """Starts `python ARGUMENTS` in a new session, with its output in a pipe."""
        read_end, write_end = os.pipe()
        with open(write_end, "wb"):
            status = self._ask_for(arguments, cwd, environ, write_end, write_end)
        return PipedProcess([sys.executable, *arguments], status, open(read_end, "rb"))

    def _ask_for(
        self, arguments: Sequence[str], cwd: str, environ: Mapping[str, str], output: int, errors: int
    ) -> socket.socket:
        """Asks for a process; returns the socket through which its number and its exit code come."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            message = {"arguments": list(arguments), "cwd": cwd, "environ": dict(environ)}
            _sent(message, self._socket, output, errors, theirs.fileno())
        return ours

    def run(
        self, arguments: Sequence[str], cwd: str, environ: Mapping[str, str], timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs `python ARGUMENTS` to its end; returns its exit code, output and errors.

        Raises:
            subprocess.TimeoutExpired: if it takes longer than `timeout`.
        """
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            process = self.start(arguments, cwd, environ, output.fileno(), errors.fileno())
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(process.args, code, output.read(), errors.read())

    def close(self) -> None:
        self._socket.close()
        self._process.wait(60)


# In the process that forks.


def _serve(tests: socket.socket, mark: str, modules: Sequence[str]) -> None:
    """Imports TensorFlow, or `modules`, and forks processes until the tests are gone."""
    address = libc.getenv(mark.encode())
    for name in modules or (*importlib.import_module(FORK_SERVER).PRELOAD, PROCESSES):
        runpy.run_path(name) if name.endswith(".py") else importlib.import_module(name)
    gc.collect()
    gc.freeze()
    running: dict[int, tuple[socket.socket, int]] = {}
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = select.select([tests, read_end], [], [])[0]
        if read_end in ready:
            os.read(read_end, 4096)
            for pid, (status, unused) in list(running.items()):
                ended, code = os.waitpid(pid, os.WNOHANG)
                if ended:
                    del running[pid]
                    select.select([unused], [], [], UNUSED_SECONDS)
                    os.close(unused)
                    with status:
                        _report(status, os.waitstatus_to_exitcode(code))
        if tests in ready:
            received = _received(tests)
            if received is None:
                for pid in running:  # Only if pytest was killed.
                    os.kill(pid, signal.SIGTERM)
                return
            message, (output, errors, descriptor) = received
            status = socket.socket(fileno=descriptor)
            unused, held = os.pipe()
            pid = os.fork()
            if not pid:
                ctypes.memmove(address, message["environ"].get(mark, "0" * 32).encode(), 32)
                _become(message["environ"], output, errors, held)
                os.chdir(message["cwd"])
                multiprocessing.process.ORIGINAL_DIR = message["cwd"]  # It spawns programs relative to this.
                _run(message["arguments"], held, is_launcher=not modules)
            for each in (output, errors, held):
                os.close(each)
            running[pid] = status, unused
            _report(status, pid)


def _report(status: socket.socket, number: int) -> None:
    try:
        status.sendall(str(number).encode())
    except OSError:
        pass  # The test has ended.


def _become(environ: Mapping[str, str], output: int, errors: int, *kept: int) -> None:
    """Makes this forked process one of its own, with standard output and error in these files."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for number, name in enumerate(("stdout", "stderr"), 1):  # They remember whether their file could be sought.
        stream, file = getattr(sys, name), open(number, "wb", 0, closefd=False)
        text = io.TextIOWrapper(file, stream.encoding, stream.errors, "\n", stream.line_buffering, write_through=True)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in kept:
            try:
                os.close(descriptor)
            except OSError:
                pass  # That of the folder /proc/self/fd.
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:0] = [folder for folder in environ.get("PYTHONPATH", "").split(":") if folder and folder not in sys.path]
    tempfile.tempdir = None  # It was chosen by the environment before.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _run(arguments: Sequence[str], held: int, is_launcher: bool) -> NoReturn:
    """Runs `python ARGUMENTS` in this process and ends it, with what the interpreter does around a program.

    Args:
        arguments: those of Python.
        held: the end of a pipe that a fork server keeps open while it is not used.
        is_launcher: whether the program may need a fork server with TensorFlow.
    """
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    code: Any = 0
    server = _ForkServer() if is_launcher else None
    os.close(held)
    if server is not None:
        sys.modules[PROCESSES].subprocess = types.SimpleNamespace(**vars(subprocess) | {"Popen": server.start})  # type: ignore[attr-defined]
    try:
        if arguments[0] == "-m":
            sys.argv = ["-m", *arguments[2:]]
            sys.path.insert(0, os.getcwd())
            runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
        elif arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            sys.path.insert(0, "")
            exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
        else:
            sys.argv = [*arguments]
            sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
            main.__file__ = os.path.abspath(arguments[0])
            with open(arguments[0], "rb") as file:
                program = compile(file.read(), main.__file__, "exec")
            exec(program, main.__dict__)
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        assert error.__traceback__ is not None
        trace = error.__traceback__.tb_next  # Without this function.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass  # The reader is gone.
    if server is not None:
        server.end()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code or 0)


class _ForkServer:
    """The fork server of a launcher, or of a program that starts a cluster; forked before that program runs."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid:
            theirs.close()
            return
        self._socket.close()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        received = _received(theirs)
        if received is None:
            os._exit(0)  # It was not needed.
        libc.prctl(PR_SET_PDEATHSIG, 0)
        message, (owner, output) = received
        _become(message["environ"], output, output, owner)
        sys.argv = [FORK_SERVER, str(owner), *message["arguments"]]
        sys.modules[FORK_SERVER].main()
        sys.stdout.flush()
        os._exit(0)

    def start(
        self, command: Sequence[str], pass_fds: Sequence[int], stdout: Any, env: Mapping[str, str], **options: Any
    ) -> "_ForkServer | subprocess.Popen[bytes]":
        """Takes the place of `subprocess.Popen` in the launcher. The fork server of a restarted job is a fresh process."""
        if self._socket.fileno() == -1:
            return subprocess.Popen(command, pass_fds=pass_fds, stdout=stdout, env=env, **options)
        assert list(command[:2]) == [sys.executable, "-c"] and FORK_SERVER in command[2] and command[3] == str(pass_fds[0])
        _sent({"arguments": list(command[4:]), "environ": dict(env)}, self._socket, pass_fds[0], stdout.fileno())
        self._socket.close()
        return self

    def end(self) -> None:
        """Ends it, if it was not needed."""
        if self._socket.fileno() != -1:
            self._socket.close()
            self.wait()

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (1e9 if timeout is None else timeout)
        while self._code is None:
            ended, code = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(code)
            elif time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(FORK_SERVER, timeout or 0)
            else:
                time.sleep(0.01)
        return self._code


if __name__ == "__main__":
    sys.path.pop(0)  # The folder of this file.
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3:])
