"""`LocalProcesses`: the tasks of a job as processes on this machine, forked by the fork server (`fork_server.py`)."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from tfdist.cluster import Task
from tfdist.dialects.environment import STARTED_VARIABLE
from tfdist.launch.backends.local.fork_server import MESSAGE_BYTES
from tfdist.launch.events import Event, Exited, Lost, Ready, Stopped
from tfdist.launch.job import Job


class LocalProcesses:
    """The fork server and the tasks that it forks. They end with `close`, or with this process, even if it is killed."""

    def __init__(self, job: Job, *, verbose: bool, remove_log_dir: bool = False) -> None:
        """Starts the fork server, which imports TensorFlow while the caller continues.

        Args:
            job: the job whose tasks are started. The fork server writes its output to `fork_server.log` in `job.log_dir`.
            verbose: whether TensorFlow logs everything instead of errors only.
            remove_log_dir: whether the fork server removes `job.log_dir` when it ends, even if this process is killed.
        """
        self._job = job
        self.log = job.log_dir / "fork_server.log"
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = dict(os.environ)
        environment["TF_GRPC_REUSE_PORT"] = "1"
        if verbose:
            environment["TFDIST_VERBOSE"] = "1"
        else:
            environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Errors only; read when TensorFlow is imported.
        module = "tfdist.launch.backends.local.fork_server"
        removed = [str(job.log_dir)] if remove_log_dir else []
        with theirs, open(self.log, "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), *removed],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal reaches the launcher only.
            )

    def fileno(self) -> int:
        """Returns the descriptor that becomes readable when `read` has an event."""
        return self._socket.fileno()

    def read(self) -> Event:
        """Returns the next event; blocks until there is one."""
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except OSError:
            data = b""
        message: dict[str, Any] = json.loads(data) if data else {"failed": self._cause_of_end()}
        if "exited" in message:
            return Exited(message["exited"], message["code"], message["time"])
        if "stopped" in message:
            return Stopped(message["stopped"], message["pid"], message["signal"])
        return Ready() if "ready" in message else Lost(message["failed"])

    def start(self, task: Task, output: int, environment: Mapping[str, str] | None = None) -> None:
        """Forks a task, which runs the program of the job.

        Args:
            task: a task of `job.cluster`.
            output: the descriptor for its standard output and standard error. The caller closes its copy.
            environment: variables for this task in addition to those of `task_environment`.
        """
        message = {
            "env": task_environment(self._job, task) | dict(environment or {}),
            "cwd": os.getcwd(),
            "program": dataclasses.asdict(self._job.program),
        }
        # In a file: TF_CONFIG of a large cluster and long argument lists exceed the limit of a message on a socket.
        with os.fdopen(os.memfd_create(task.name), "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(message, file)
            file.flush()
            file.seek(0)
            try:
                socket.send_fds(self._socket, [json.dumps({"start": task.name}).encode()], [file.fileno(), output, output])
            except OSError:
                pass  # The fork server is gone; `read` returns Lost.

    def signal(self, names: Iterable[str], number: int) -> None:
        """Sends a signal to the process groups of the tasks with these names (`job:index`)."""
        try:
            self._socket.sendall(json.dumps({"signal": int(number), "tasks": list(names)}).encode())
        except OSError:
            pass  # The fork server is gone; `read` returns Lost.

    def kill(self, task: Task) -> None:
        """Kills the processes of a task."""
        self.signal([task.name], signal.SIGKILL)

    def close(self, timeout: float = 8.0) -> None:
        """Ends every task and the fork server; kills those that still run after `timeout` seconds."""
        self._socket.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # Its tasks die with it (PR_SET_PDEATHSIG).
            self._process.wait()

    def _cause_of_end(self) -> str:
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            return "it closed its socket"
        return f"it was killed by signal {-code}" if code < 0 else f"it exited with {code}"


def task_environment(job: Job, task: Task) -> dict[str, str]:
    """Returns the variables of a task beyond those of this process: TF_CONFIG, and its share of the cores.

    On few cores, many TensorFlow processes with one thread per core each slow each other down. Variables that the user has set
    stay as they are, except TF_CONFIG.
    """
    environment = {STARTED_VARIABLE: "1"}
    cluster = job.cluster
    if task.job == "evaluator":
        # The evaluator must not slow the training down: it computes with one thread and leaves the GPUs' memory to the others.
        environment |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    else:
        serving = job.serving
        computing = [each for each in cluster.training_tasks if each.job == "worker" or not serving]
        if len(cluster.training_tasks) > 1:
            share = max(1, (os.cpu_count() or 1) // max(1, len(computing)))
            environment |= {"TF_NUM_INTRAOP_THREADS": str(share), "TF_NUM_INTEROP_THREADS": str(max(2, share))}
        if serving and task not in computing:
            environment["CUDA_VISIBLE_DEVICES"] = "-1"  # A chief or ps would take the GPU memory that the workers need.
    environment = {name: value for name, value in environment.items() if name not in os.environ}
    return environment | {"TF_CONFIG": json.dumps(cluster.tf_config(task.job, task.index))}
