"""Starts the ps and worker tasks of a plain program or notebook on this machine, and ends them with it."""

import atexit
import logging
import os
import selectors
import shutil
import tempfile
import threading
from pathlib import Path

from tfdist.choice import choose
from tfdist.cluster import Cluster, Task
from tfdist.launch.backends.local.backend import plan
from tfdist.launch.backends.local.ports import HeldPorts, is_local
from tfdist.launch.backends.local.processes import LocalProcesses, opened
from tfdist.launch.jobs.events import Event, Exited, Lost, NotStarted, Stopped
from tfdist.launch.jobs.job import Job, JobFiles, Program
from tfdist.launch.jobs.restarts import Restarts
from tfdist.launch.terminal.output import last_lines
from tfdist.strategies.runtime.peers import note_failures

POLL_SECONDS = 0.5

_log = logging.getLogger("tfdist")


def start_servers(cluster: Cluster, tasks: list[Task]) -> Cluster:
    """Starts `tasks` as servers on this machine, with this process as their chief; returns the cluster with addresses.

    The servers end when this process ends, for any reason. They write their output to files in a temporary folder, which is
    removed at the end. When a server fails, the last lines of its output are logged, and a wait for its start ends.

    Raises:
        ClusterError: when a task belongs to another machine, or its port is taken.
    """
    for task in tasks:
        if not is_local(task.host) and cluster.task is None:
            raise cluster.source.error(
                f"{task.name} is on {task.host}, another machine; start this program there with its TF_CONFIG "
                "(tfdist translate prints it), or describe localhost"
            )
    os.environ["TF_GRPC_REUSE_PORT"] = "1"  # The chief binds a held port, too.
    ports = HeldPorts()
    cluster = ports.hold(cluster, {"chief:0", *(task.name for task in tasks)})
    folder = Path(tempfile.mkdtemp(prefix="tfdist-"))
    started = [cluster.find(task.job, task.index) for task in tasks]  # With their ports.
    servers = _Servers(Job(cluster, choose(cluster), Program()), JobFiles(folder), started)
    owner = os.getpid()

    def end() -> None:
        if os.getpid() != owner:
            return  # A forked child of the program ends, not the program.
        servers.close()
        ports.close()
        shutil.rmtree(folder, ignore_errors=True)  # The fork server removes it as well, unless it was killed.

    atexit.register(end)
    return cluster


class _Servers:
    """The running servers. A thread restarts those that may be replaced, and logs what happens to the others."""

    def __init__(self, job: Job, files: JobFiles, tasks: list[Task]) -> None:
        _log.debug("starting %s on this machine", ", ".join(task.name for task in tasks))
        self._ending = threading.Event()
        planned = plan(job, lambda task: is_local(task.host)).with_cluster(job.cluster)
        self._processes = LocalProcesses(planned, files.log_dir, removed=[files.log_dir])
        replaceable = [task for task in tasks if task in job.replaceable]
        self._restarts = Restarts(
            replaceable,
            start=self._restart,
            kill=self._processes.kill,
            say=_log.warning,
            meanwhile=job.loss_of_a_worker,
            can_continue=job.has_worker_group,
            awaited=job.awaited,
        )
        self._tasks = tasks
        note_failures(tasks, None)
        self._logs = {task.name: files.log(task) for task in tasks}
        for task in tasks:
            self._start(task)
        threading.Thread(target=self._watch, name="tfdist-servers", daemon=True).start()

    def close(self) -> None:
        self._ending.set()
        self._processes.close()

    def _start(self, task: Task) -> None:
        with opened(self._logs[task.name]) as log:
            self._processes.start(task, log.fileno())

    def _restart(self, task: Task) -> None:
        try:
            self._start(task)
        except OSError as error:
            self._restarts.exited(NotStarted(task.name, note=str(error)))

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._processes, selectors.EVENT_READ)
            while not self._ending.is_set():
                has_event = selector.select(POLL_SECONDS)
                self._restarts.tick()
                if not has_event or self._ending.wait(POLL_SECONDS):  # The program may be ending them.
                    continue
                while selector.select(0):
                    if not self._handle(self._processes.read()):
                        return

    def _handle(self, event: Event) -> bool:
        """Handles an event while the program runs; returns whether more may follow."""
        if isinstance(event, Lost):
            _log.error("%s", event.reason)
            note_failures(self._tasks, event.reason)
            return False
        if isinstance(event, Stopped):
            if event.message:
                _log.warning("%s", event.message)
            self._restarts.stopped(event)
        elif not isinstance(event, Exited):
            pass
        elif event.task in self._restarts.names and (event.code < 0 or isinstance(event, NotStarted)):
            self._restarts.exited(event)
        elif event.code != 0:
            self._log_failure(event)
        return True

    def _log_failure(self, event: Exited) -> None:
        """Logs a failure and its cause. A program that has started continues: TensorFlow reports the lost server to it."""
        lines = last_lines(self._logs[event.task])
        note_failures([task for task in self._tasks if task.name == event.task], event.cause)
        _log.error("%s failed: %s; its last lines:\n%s", event.task, event.cause, "\n".join(lines))
