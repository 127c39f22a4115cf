"""`LocalProcesses`: the tasks of a job as processes on this machine, forked by the fork server (`fork_server.py`)."""

import dataclasses
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import tfdist
from tfdist.cluster import Task
from tfdist.dialects.environment import STARTED_VARIABLE
from tfdist.launch.backends import interpreter
from tfdist.launch.backends.interface import Plan
from tfdist.launch.backends.local.descendants import become_subreaper, children, end_children, kill_group
from tfdist.launch.backends.local.fork_server import GONE, MESSAGE_BYTES
from tfdist.launch.jobs.events import Event, Lost, Ready, from_json
from tfdist.launch.terminal.output import last_lines

SEND_SECONDS = 5.0
"""How long a message to the fork server may wait for it to read."""

_PROGRAM = """
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
import importlib.util, os
file = {file!r}
if importlib.util.find_spec("tfdist") is None:
    sys.path.append(os.path.dirname(os.path.dirname(file)))
spec = importlib.util.spec_from_file_location("tfdist", file)
sys.modules["tfdist"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["tfdist"])
from tfdist.launch.backends.local.fork_server import main
main()
"""
"""The fork server, for `python -c`.

Python would look for modules in the current folder first, where a `queue.py` of the user's takes the place of that of the
standard library. A script does not find modules there, unless it is its own folder. tfdist is the one that runs here, whatever
path it was found by.
"""


class LocalProcesses:
    """The fork server and the tasks that it forks. They end with `close`, or with this process, even if it is killed."""

    def __init__(
        self, plan: Plan, log_dir: Path, *, removed: Iterable[Path], adopt: bool = False, longest_stop: float = 0.0
    ) -> None:
        """Starts the fork server, which imports TensorFlow while the caller continues.

        Args:
            plan: the plan whose tasks are started, with addresses.
            log_dir: existing folder. The fork server writes its output to `fork_server.log` there.
            removed: folders that the fork server removes when it ends, even if this process is killed.
            adopt: whether this process adopts, and `close` ends, what tasks leave behind if the fork server is killed. It then
                starts no other processes.
            longest_stop: seconds after which this process is killed, with the tasks, if a signal has stopped it; 0: never.
        """
        self.plan = plan
        self._spared: set[int] | None = None
        if adopt:
            become_subreaper()
            self._spared = set(children())
        self.log = log_dir / "fork_server.log"
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, **plan.job.environment, "TF_GRPC_REUSE_PORT": "1"}
        if plan.job.verbose:
            environment["TFDIST_VERBOSE"] = "1"
        else:
            environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Errors only; read when TensorFlow is imported.
        with theirs, opened(self.log, anew=True) as output:
            code = _PROGRAM.format(file=tfdist.__file__)
            arguments = [str(theirs.fileno()), str(longest_stop), *map(str, removed)]
            self._process = subprocess.Popen(
                [sys.executable, *interpreter.options(), "-c", code, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal reaches the launcher only.
            )
        seconds, microseconds = divmod(int(SEND_SECONDS * 1e6), 1_000_000)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, microseconds))

    def fileno(self) -> int:
        """Returns the descriptor that becomes readable when `read` has an event."""
        return self._socket.fileno()

    def read(self) -> Event:
        """Returns the next event; blocks until there is one."""
        data = b""
        for _ in range(2):
            try:
                data = self._socket.recv(MESSAGE_BYTES)
                break
            except OSError:  # It has ended without having read all. What it has said is still there, after this error.
                pass
        if not data:
            return Lost(f"{GONE}{self._cause_of_end()}")
        message: dict[str, Any] = json.loads(data)
        return Ready(self.plan.job.cluster) if "ready" in message else from_json(message)

    def start(self, task: Task, output: int, environment: Mapping[str, str] | None = None) -> None:
        """Forks a task, which runs the program of the job.

        Args:
            task: a task of `job.cluster`.
            output: the descriptor for its standard output and standard error. The caller closes its copy.
            environment: variables for this task besides TF_CONFIG and those of the plan and the user.

        Raises:
            OSError: if the fork server cannot be asked. If it is gone, `read` returns Lost instead.
        """
        job = self.plan.job
        description = {STARTED_VARIABLE: "1", "TF_CONFIG": json.dumps(job.cluster.tf_config(task.job, task.index))}
        variables = {**self.plan.environment.get(task.name, {}), **job.environment, **description, **(environment or {})}
        message = {"env": variables, "cwd": job.folder, "program": dataclasses.asdict(job.program)}
        request = {"start": task.name, "hold": "never" if variables.get("TFDIST_REPORT") else self._hold(task)}
        # In a file: TF_CONFIG of a large cluster and long argument lists exceed the limit of a message on a socket.
        with os.fdopen(os.memfd_create(task.name), "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(message, file)
            file.flush()
            file.seek(0)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], [file.fileno(), output, output])
            except (BrokenPipeError, ConnectionError):
                pass  # The fork server is gone; `read` returns Lost.
            except BlockingIOError as error:
                raise OSError(f"the parent process of all tasks does not answer; was it stopped? See {self.log}") from error

    def signal(self, names: Iterable[str], number: int) -> None:
        """Sends a signal to the tasks with these names (`job:index`); see `TaskRunner.signal`."""
        if number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            self._resume()
        try:
            self._socket.sendall(json.dumps({"signal": int(number), "tasks": list(names)}).encode())
        except OSError:
            pass  # The fork server is gone.

    def kill(self, task: Task) -> None:
        """Kills the processes of a task."""
        self.signal([task.name], signal.SIGKILL)

    def clear(self, timeout: float = 4.0) -> bool:
        """Ends every task within `timeout` seconds, and keeps the fork server.

        Returns:
            Whether it can be used for another job; else `close` has to end it.
        """
        try:
            self._socket.sendall(json.dumps({"clear": True}).encode())
            self._socket.settimeout(timeout)
            while data := self._socket.recv(MESSAGE_BYTES):
                if "cleared" in json.loads(data):
                    self._socket.settimeout(None)
                    return True
        except OSError:
            pass
        return False

    def use_for(self, plan: Plan, removed: Iterable[Path]) -> bool:
        """Begins another job after `clear`, with the same environment: `read` returns Ready again.

        Returns:
            Whether it does; False if the fork server is gone.
        """
        self.plan = plan
        try:
            self._socket.sendall(json.dumps({"remove": [str(path) for path in removed]}).encode())
        except OSError:
            return False
        return True

    def close(self, timeout: float = 8.0) -> None:
        """Ends every task and the fork server; kills those that still run after `timeout` seconds."""
        self._socket.close()
        self._resume()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # Its tasks die with it (PR_SET_PDEATHSIG).
            self._process.wait()
        if self._spared is not None:
            end_children(self._spared, self._reap)

    def _resume(self) -> None:
        """Lets the fork server go on if it was stopped: only it can end its tasks in order, and the program may save."""
        try:
            self._process.wait(0)
        except subprocess.TimeoutExpired:
            kill_group(self._process.pid, signal.SIGCONT)

    def _hold(self, task: Task) -> str:
        """Returns when a task holds SIGTERM back, see `fork_server.py`: the task that saves needs it, and it is ended after it.

        Slurm, systemd and a machine that shuts down send SIGTERM to all processes of a job.
        """
        if "SLURM_JOB_ID" in os.environ:
            return "always"
        # A task that serves waits in Python, where it can look for a sign that all have got the signal.
        return "everybody" if task.job in {each.job for each in self.plan.job.serving} else "never"

    def _reap(self) -> None:
        for pid in children().keys() - (self._spared or set()):
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass

    def _cause_of_end(self) -> str:
        """Returns why the fork server ended without a word, as the second half of a sentence."""
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            ended = "it closed its socket"
        else:
            ended = f"it was killed by signal {-code}" if code < 0 else f"it exited with {code}"
        last = last_lines(self.log)[-1:]
        return f"{ended} after its line {last[0].strip()!r}" if last else ended


def opened(log: Path, *, anew: bool = False) -> IO[bytes]:
    """Opens a log, `anew` an empty one; where that is impossible (a full disk, a folder that is gone), its output is lost."""
    try:
        file = open(log, "ab")  # noqa: SIM115  At the end, also after a program that rotates logs has cut it.
        if anew:
            file.truncate(0)
        return file
    except OSError:
        return open(os.devnull, "wb")
