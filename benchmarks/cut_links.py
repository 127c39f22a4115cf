"""Trains with one task per network namespace, started by hand with TF_CONFIG, and cuts links. Needs Linux and root.

The tasks are forks of this process, which has imported TensorFlow.
"""

import contextlib
import importlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from networks import Network

from tfdist.launch.backends.local.fork_server import PRELOAD

PORT = 2222


class Tasks:
    """The tasks of a job, each on a node of its own. Use it as a context manager, which ends them.

    Args:
        network: the nodes, one for each task.
        jobs: number of tasks by job, in the order of the nodes.
        options: what TF_CONFIG has under its key `tfdist`.
        folder: the working folder of all tasks, where each writes its output into JOB-INDEX.log. No `TemporaryDirectory`: the
            first fork that ends would remove it.
        command: the program and its arguments.
        environment: variables for all tasks.
        absent: tasks that are not started.
    """

    def __init__(
        self,
        network: Network,
        jobs: Mapping[str, int],
        options: Mapping[str, Any],
        folder: Path,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        absent: Sequence[str] = (),
    ) -> None:
        for module in PRELOAD:  # Once, for all forks.
            importlib.import_module(module)
        self.names = [f"{job}:{index}" for job, count in jobs.items() for index in range(count)]
        self.exits: dict[str, int] = {}
        self._network = network
        self._folder = folder
        self._pids: dict[str, int] = {}
        node = iter(range(len(self.names)))
        cluster = {job: [f"{network.address(next(node))}:{PORT}" for _ in range(count)] for job, count in jobs.items()}
        for name in self.names:
            job, index = name.split(":")
            config = {"cluster": cluster, "task": {"type": job, "index": int(index)}, "tfdist": dict(options)}
            variables = {"TF_CONFIG": json.dumps(config), **(environment or {})}
            if name not in absent:
                self._pids[name] = os.fork() or self._run(name, list(command), variables)

    def __enter__(self) -> "Tasks":
        return self

    def __exit__(self, *_: object) -> None:
        for name, pid in self._pids.items():
            if name not in self.exits:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _run(self, name: str, command: list[str], environment: dict[str, str]) -> NoReturn:
        """Becomes a task: does not return."""
        try:
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.environ.update(environment)
            self._network.enter(self.names.index(name))
            os.chdir(self._folder)
            descriptor = os.open(self.log(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            from tfdist.launch.backends.local.run_program import run
            from tfdist.launch.job import Program

            run(Program(script=command[0], args=command[1:]))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def log(self, name: str) -> Path:
        """Returns the file with the output of a task."""
        return self._folder / f"{name.replace(':', '-')}.log"

    def cut(self, names: Sequence[str]) -> None:
        """Cuts the links of tasks."""
        for name in names:
            self._network.cut(self.names.index(name))

    def heal(self, names: Sequence[str]) -> None:
        """Connects tasks again."""
        for name in names:
            self._network.heal(self.names.index(name))

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Sends a signal to a task."""
        os.kill(self._pids[name], number)

    def wait(self, is_over: Callable[[], bool], seconds: float) -> bool:
        """Waits until `is_over()`, or for that many seconds. Returns whether it is over. Fills `exits` with exit codes."""
        latest = time.monotonic() + seconds
        while True:
            for name, pid in self._pids.items():
                if name not in self.exits and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                    self.exits[name] = os.waitstatus_to_exitcode(ended[1])
            if is_over():
                return True
            if time.monotonic() > latest:
                return False
            time.sleep(0.05)

    def said(self, name: str) -> str:
        """Returns the output of a task."""
        return self.log(name).read_text(errors="replace") if self.log(name).exists() else ""

    def named(self, name: str) -> list[str]:
        """Returns the tasks that the last lines of a task's output name, in their order."""
        lines = [line for line in self.said(name).splitlines() if "Error" in line or "tfdist" in line or "no answer" in line]
        found = re.findall(r"(?:/job:)?(chief|worker|ps)(?:/replica:\d+)?(?:/task)?:(\d+)", " ".join(lines[-3:]))
        return list(dict.fromkeys(f"{job}:{index}" for job, index in found))


if __name__ == "__main__":
    sys.exit("benchmarks/faults.py uses this file")
