"""ps and worker tasks of a plain program or notebook: started by it on this machine, ended with it."""

import atexit
import contextlib
import logging
import os
import selectors
import shutil
import signal
import tempfile
import threading
from pathlib import Path

from tfdist.choice import choose
from tfdist.cluster import Cluster, Task
from tfdist.launch.backends.local.ports import HeldPorts, is_local
from tfdist.launch.backends.local.processes import Event, LocalTasks, Lost, Ready, Stopped, task_environment
from tfdist.launch.restarts import Restarts
from tfdist.strategies import replaceable_jobs

POLL_SECONDS = 0.5

_log = logging.getLogger("tfdist")


def start_servers(cluster: Cluster, tasks: list[Task]) -> Cluster:
    """Starts `tasks` as servers on this machine, for this process as their chief; returns the cluster with addresses.

    They end when this process ends, however it ends. Their output goes to files in a temporary folder, which is removed at the
    end; should one die early, the last lines of its output are logged.

    Raises:
        ClusterError: when one of the tasks belongs on another machine, or its port is taken.
    """
    for task in tasks:
        if not is_local(task.host) and cluster.task is None:
            raise cluster.source.error(
                f"{task.name} is on {task.host}, another machine; start this program there with its TF_CONFIG "
                "(python -m tfdist.translate prints it), or describe localhost"
            )
    os.environ["TF_GRPC_REUSE_PORT"] = "1"  # The chief, too, binds a port that is held.
    ports = HeldPorts()
    cluster = ports.hold(cluster, {"chief:0", *(task.name for task in tasks)})
    folder = Path(tempfile.mkdtemp(prefix="tfdist-"))
    servers = _Servers(cluster, tasks, folder)
    program = os.getpid()

    def end() -> None:
        if os.getpid() != program:
            return  # A forked child of the program ends, not the program.
        servers.close()
        ports.close()
        shutil.rmtree(folder, ignore_errors=True)  # The fork server does this, too, if it has not been killed.

    atexit.register(end)
    return cluster


class _Servers:
    """The running servers. A thread starts those again that the others can do without, and logs what happens to them."""

    def __init__(self, cluster: Cluster, tasks: list[Task], folder: Path) -> None:
        _log.debug("starting %s on this machine", ", ".join(task.name for task in tasks))
        self._cluster = cluster
        self._choice = choose(cluster)
        self._ending = threading.Event()
        with open(folder / "fork_server.log", "wb") as log:
            self._running = LocalTasks(log, verbose=False, folder=str(folder))
        replaceable = [task for task in tasks if task.job in replaceable_jobs(self._choice.strategy)]
        self._restarts = Restarts(replaceable, start=self._start, kill=self._kill, say=_log.warning)
        self._logs = {task.name: folder / task.log_name for task in tasks}
        for task in tasks:
            self._start(task)
        threading.Thread(target=self._watch, name="tfdist-servers", daemon=True).start()

    def close(self) -> None:
        self._ending.set()
        self._running.close()

    def _start(self, task: Task) -> None:
        environment = task_environment(self._cluster, self._choice, task)
        with open(self._logs[task.name], "ab") as log:
            self._running.start(task.name, {"serve": True}, environment, log.fileno(), log.fileno())

    def _kill(self, task: Task) -> None:
        self._running.signal([task.name], signal.SIGKILL)

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._running, selectors.EVENT_READ)
            while not self._ending.is_set():
                there = selector.select(POLL_SECONDS)
                self._restarts.tick()
                if there and not self._handle(self._running.read()):
                    return

    def _handle(self, event: Event) -> bool:
        """Logs what has happened while the program runs; whether there is more to come."""
        if isinstance(event, Ready) or self._ending.wait(POLL_SECONDS):
            return True
        if isinstance(event, Lost):
            _log.error("the process that runs the ps and worker tasks is gone: %s", event.reason)
            return False
        if isinstance(event, Stopped):
            if event.told:
                _log.warning("%s", event.told)
            if event.task in self._restarts.names:
                self._restarts.stopped(event.task, event.signal is not None)
        elif event.task in self._restarts.names and event.code < 0:
            self._restarts.exited(event.task, event.code, event.how)
        elif event.code != 0:  # What the program does then, TensorFlow tells it.
            with contextlib.suppress(OSError):
                last = self._logs[event.task].read_text(errors="replace").splitlines()[-10:]
                _log.error("%s ended with %d; its last lines:\n%s", event.task, event.code, "\n".join(last))
        return True
