"""Trains with one task per network namespace, started by hand with TF_CONFIG, and cuts links. Needs Linux and root.

The tasks are forks of this process, which has imported TensorFlow.
"""

import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
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
        clocks: for tasks whose clock is wrong, by how many seconds it is ahead. They import TensorFlow themselves.
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
        clocks: Mapping[str, int] | None = None,
    ) -> None:
        for module in PRELOAD:  # Once, for all forks.
            importlib.import_module(module)
        self.names = [f"{job}:{index}" for job, count in jobs.items() for index in range(count)]
        self.exits: dict[str, int] = {}
        self._network = network
        self._folder = folder
        self._command = list(command)
        self._pids: dict[str, int] = {}
        self._nodes = {name: node for node, name in enumerate(self.names)}
        self._variables: dict[str, dict[str, str]] = {}
        network.name({_host(name): node for name, node in self._nodes.items()})
        cluster = {job: [f"{_host(f'{job}:{index}')}:{PORT}" for index in range(count)] for job, count in jobs.items()}
        for name in self.names:
            job, index = name.split(":")
            config = {"cluster": cluster, "task": {"type": job, "index": int(index)}, "tfdist": dict(options)}
            self._variables[name] = {"TF_CONFIG": json.dumps(config), **(environment or {})}
            if seconds := (clocks or {}).get(name):
                library = str(_wrong_clock(folder))
                self._variables[name] |= {"LD_PRELOAD": library, "CLOCK_AHEAD": str(seconds)}
            if name not in absent:
                self._start(name)

    def __enter__(self) -> "Tasks":
        return self

    def __exit__(self, *_: object) -> None:
        for name, pid in self._pids.items():
            if name not in self.exits:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def start_again(self, name: str, node: int | None = None) -> None:
        """Starts a task that has ended, on another node or where it was. Its name has the address of that node from now on."""
        if node is not None:
            self._nodes[name] = node
            self._network.name({_host(each): place for each, place in self._nodes.items()})
        del self.exits[name]
        self._start(name)

    def _start(self, name: str) -> None:
        self._pids[name] = os.fork() or self._run(name, self._command, self._variables[name])

    def _run(self, name: str, command: list[str], environment: dict[str, str]) -> NoReturn:
        """Becomes a task: does not return."""
        try:
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.environ.update(environment)
            self._network.enter(self._nodes[name])
            os.chdir(self._folder)
            descriptor = os.open(self.log(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            if "LD_PRELOAD" in environment:
                os.execv(sys.executable, [sys.executable, *command])
            from tfdist.launch.backends.local.run_program import run
            from tfdist.launch.jobs.job import Program

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
            self._network.cut(self._nodes[name])

    def heal(self, names: Sequence[str]) -> None:
        """Connects tasks again."""
        for name in names:
            self._network.heal(self._nodes[name])

    def cut_between(self, name: str, other: str) -> None:
        """Cuts the link between two tasks only."""
        self._network.cut_between(self._nodes[name], self._nodes[other])

    def heal_between(self, name: str, other: str) -> None:
        """Connects two tasks again."""
        self._network.heal_between(self._nodes[name], self._nodes[other])

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


def _host(name: str) -> str:
    """Returns the host name of a task: `worker-1`."""
    return name.replace(":", "-")


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static time_t ahead(void) { const char *text = getenv("CLOCK_AHEAD"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t id, struct timespec *to) {
  static int (*next)(clockid_t, struct timespec *);
  if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int result = next(id, to);
  if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) to->tv_sec += ahead();
  return result;
}
int gettimeofday(struct timeval *to, void *zone) {
  struct timespec now;
  int result = clock_gettime(CLOCK_REALTIME, &now);
  to->tv_sec = now.tv_sec;
  to->tv_usec = now.tv_nsec / 1000;
  return result;
}
time_t time(time_t *to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to) *to = now.tv_sec;
  return now.tv_sec;
}
"""
"""A library that stands before the system's, and answers with a clock that is wrong."""


def _wrong_clock(folder: Path) -> Path:
    """Returns that library, compiled."""
    library = folder / "clock.so"
    if not library.exists():
        command = ["cc", "-shared", "-fPIC", "-o", str(library), "-x", "c", "-", "-ldl"]
        subprocess.run(command, input=CLOCK.encode(), check=True)
    return library


if __name__ == "__main__":
    sys.exit("benchmarks/faults.py uses this file")
