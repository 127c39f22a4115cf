"""ps and worker tasks of a plain program or notebook: started by it on this machine, ended with it."""

import atexit
import contextlib
import logging
import os
import shutil
import tempfile
import threading
from pathlib import Path

from tfdist.choice import choose
from tfdist.cluster import Cluster, Task
from tfdist.launch.local import Exited, LocalTasks, Lost, Ready, task_environment
from tfdist.launch.ports import HeldPorts, is_local

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
    choice = choose(cluster)
    with open(folder / "fork_server.log", "wb") as log:
        running = LocalTasks(log, verbose=False)
    _log.debug("starting %s on this machine", ", ".join(task.name for task in tasks))
    for task in tasks:
        with open(folder / task.log_name, "wb") as log:
            running.start(task.name, {"serve": True}, task_environment(cluster, choice, task), log.fileno(), log.fileno())
    ending = threading.Event()
    logs = {task.name: folder / task.log_name for task in tasks}
    threading.Thread(target=_watch, args=(running, logs, ending), name="tfdist-servers", daemon=True).start()

    program = os.getpid()

    def end() -> None:
        if os.getpid() != program:
            return  # A forked child of the program ends, not the program.
        ending.set()
        running.close()
        ports.close()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return cluster


def _watch(running: LocalTasks, logs: dict[str, Path], ending: threading.Event) -> None:
    """Logs servers that die while the program still runs; what it does then, TensorFlow tells it."""
    while not ending.is_set():
        event = running.read()
        if isinstance(event, Ready) or ending.wait(0.5):
            continue
        if isinstance(event, Lost):
            _log.error("the process that runs the ps and worker tasks is gone: %s", event.reason)
            return
        if isinstance(event, Exited) and event.code != 0:
            with contextlib.suppress(OSError):
                last = logs[event.task].read_text(errors="replace").splitlines()[-10:]
                _log.error("%s ended with %d; its last lines:\n%s", event.task, event.code, "\n".join(last))
