"""Tasks as processes on this machine, forked from one process that has imported TensorFlow (see backends/local/fork_server.py)."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, Any

from tfdist.choice import Choice
from tfdist.cluster import Cluster, Task
from tfdist.dialects.environment import STARTED_VARIABLE
from tfdist.launch.backends.local.fork_server import MESSAGE_BYTES
from tfdist.strategies import serving_jobs


@dataclass(frozen=True)
class Exited:
    """A task's process has ended, with an exit code or minus the number of the signal that killed it."""

    task: str
    code: int
    time: float

    @property
    def how(self) -> str:
        """The code in words."""
        if self.code >= 0:
            return f"it exited with {self.code}"
        try:
            return f"it was killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"it was killed by signal {-self.code}"


@dataclass(frozen=True)
class Stopped:
    """A signal has stopped a task's process; where `signal` is None it goes on."""

    task: str
    pid: int
    signal: int | None

    @property
    def told(self) -> str | None:
        """A sentence about a process that was stopped."""
        if self.signal is None:
            return None
        return f"{self.task} was stopped by {signal.Signals(self.signal).name}; `kill -CONT {self.pid}` lets it go on"


@dataclass(frozen=True)
class Ready:
    """The fork server has imported TensorFlow."""


@dataclass(frozen=True)
class Lost:
    """The fork server itself is gone, with the reason as far as it is known."""

    reason: str


Event = Exited | Stopped | Ready | Lost


class LocalTasks:
    """The fork server and the tasks that it runs. `close` ends them all; so does the end of this process, however it comes."""

    def __init__(self, output: IO[bytes], verbose: bool, folder: str | None = None) -> None:
        """Starts the fork server; it imports TensorFlow while the caller goes on.

        Args:
            output: where the fork server's own output goes.
            verbose: whether TensorFlow tells everything.
            folder: removed at the end of the fork server, so also when this process is killed.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = dict(os.environ)
        environment["TF_GRPC_REUSE_PORT"] = "1"
        if verbose:
            environment["TFDIST_VERBOSE"] = "1"
        else:
            environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Errors only; read when TensorFlow is imported.
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tfdist.launch.backends.local.fork_server",
                    str(theirs.fileno()),
                    *([folder] if folder else []),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal reaches the launcher only.
            )

    def fileno(self) -> int:
        """The descriptor that becomes readable when `read` has something to give."""
        return self._socket.fileno()

    def read(self) -> Event:
        """The next event; blocks until there is one."""
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except OSError:
            data = b""
        message: dict[str, Any] = json.loads(data) if data else {"failed": self._how_it_ended()}
        if "exited" in message:
            return Exited(message["exited"], message["code"], message["time"])
        if "stopped" in message:
            return Stopped(message["stopped"], message["pid"], message["signal"])
        return Ready() if "ready" in message else Lost(message["failed"])

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            return "it closed its socket"
        return f"it was killed by signal {-code}" if code < 0 else f"it exited with {code}"

    def start(self, name: str, program: dict[str, Any], environment: dict[str, str], stdout: int, stderr: int) -> None:
        """Forks the task `name`, which runs `program` (see backends/local/run_program.py) with these variables and output descriptors."""
        # TF_CONFIG of a large cluster and long argument lists are more than a message on a socket may hold.
        with os.fdopen(os.memfd_create(name), "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump({"env": environment, "cwd": os.getcwd(), "program": program}, file)
            file.flush()
            file.seek(0)
            try:
                socket.send_fds(self._socket, [json.dumps({"start": name}).encode()], [file.fileno(), stdout, stderr])
            except OSError:
                pass  # As in _send.

    def signal(self, names: Iterable[str], number: int) -> None:
        """Sends a signal to the process groups of these tasks."""
        self._send({"signal": int(number), "tasks": list(names)})

    def close(self, timeout: float = 8.0) -> None:
        """Ends every task and the fork server; kills what has not ended after `timeout` seconds."""
        self._socket.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # Its tasks die with it (PR_SET_PDEATHSIG).
            self._process.wait()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode())
        except OSError:
            pass  # The fork server is gone; `read` tells.


def task_environment(cluster: Cluster, choice: Choice, task: Task) -> dict[str, str]:
    """The variables that a task gets beside those of the launcher: TF_CONFIG, and its share of the cores.

    On few cores, many TensorFlow processes with a thread per core each fight for them. What the user has set stays.
    """
    environment = {STARTED_VARIABLE: "1", "TF_CONFIG": json.dumps(cluster.tf_config(task.job, task.index))}
    serving = serving_jobs(choice.strategy)
    if task.job == "evaluator":
        # It must not slow the training down: one thread to compute with, and no GPU, of whose memory TensorFlow takes all.
        environment |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
        return {name: value for name, value in environment.items() if name == "TF_CONFIG" or name not in os.environ}
    computing = [t for t in cluster.training_tasks if t.job == "worker" or not serving]
    if len(cluster.training_tasks) > 1:
        cores = os.cpu_count() or 1
        share = max(1, cores // max(1, len(computing)))
        environment["TF_NUM_INTRAOP_THREADS"] = str(share)
        environment["TF_NUM_INTEROP_THREADS"] = str(max(2, share))
    if serving and task not in computing:
        environment["CUDA_VISIBLE_DEVICES"] = "-1"  # A chief or ps that took a GPU's memory would leave none to the workers.
    return {name: value for name, value in environment.items() if name == "TF_CONFIG" or name not in os.environ}
