"""The agent on a host of a job: runs the host's tasks as the back end `local` does, for a launcher at the other end of stdin.

It ends all of them when its standard input ends, when it hears nothing for `SILENCE_SECONDS`, or when nobody reads what
it says: remote tasks live no longer than their launcher, even if the connection is cut. If the agent itself is killed, or a
signal stops it for as long, the fork server ends them.
"""

import dataclasses
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tfdist import machine
from tfdist.choice import Choice
from tfdist.cluster import Cluster
from tfdist.devices import visible
from tfdist.dialects import read
from tfdist.errors import ClusterError, Source
from tfdist.launch.backends.agents.frames import BEAT_SECONDS, BESIDE_REPORT, START, STOPPED_SECONDS, Decoder, encode
from tfdist.launch.backends.local.backend import LocalTasks, plan
from tfdist.launch.backends.local.guard import FOR_THE_PROGRAM
from tfdist.launch.backends.local.ports import is_free, is_local
from tfdist.launch.jobs.events import Event, Exited, Output, Ready, as_json
from tfdist.launch.jobs.job import Job, JobFiles, Program
from tfdist.strategies.checkpoint.own_folder import AGENT, OwnFolder
from tfdist.version import __version__

POLL_SECONDS = 0.5
PORT_POLL_SECONDS = 0.2
RESOLVE_SECONDS = 5.0


class _Ended(Exception):
    """The launcher is gone, or wants the end."""


class _Launcher:
    """The launcher, at the other end of standard input and output."""

    def __init__(self, silence: float) -> None:
        # Whatever else prints in this process, prints to standard error.
        self._out = os.dup(1)
        os.dup2(2, 1)
        os.set_blocking(self._out, False)
        os.set_blocking(0, False)
        self._decoder = Decoder()
        self._silence = silence
        self._heard_at = time.monotonic()
        self._said_at = 0.0
        self._write(START)

    def fileno(self) -> int:
        return 0

    def say(self, message: dict[str, Any], data: bytes = b"") -> None:
        self._write(encode(message, data))

    def beat(self) -> None:
        """Says that this side is alive, once a second."""
        if time.monotonic() - self._said_at >= BEAT_SECONDS:
            self.say({"beat": True})

    def hear(self) -> list[dict[str, Any]]:
        """Returns what the launcher has said. Raises _Ended if it is gone."""
        messages: list[dict[str, Any]] = []
        while True:
            try:
                data = os.read(0, 1 << 16)
            except BlockingIOError:
                break
            except OSError as error:
                raise _Ended from error
            if not data:
                raise _Ended
            self._heard_at = time.monotonic()
            messages += [message for message, _ in self._decoder.feed(data)]
        if time.monotonic() - self._heard_at > self._silence:
            print(f"tfdist agent: nothing heard for {self._silence:.0f} s; ending the tasks", file=sys.stderr)
            raise _Ended
        return messages

    def _write(self, data: bytes) -> None:
        self._said_at = time.monotonic()
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._out, view) :]
            except BlockingIOError:
                if not select.select([], [self._out], [], self._silence)[1]:
                    raise _Ended from None
            except OSError as error:
                raise _Ended from error


class _Agent:
    """The tasks of this host."""

    def __init__(self, launcher: _Launcher, hello: dict[str, Any], folder: Path) -> None:
        self._launcher = launcher
        self._reports = folder
        self._reporter = ""
        self._sent_at: dict[str, int] = {}
        self._has_room = True
        self._early_messages: list[dict[str, Any]] = []  # What the launcher has said before this agent could obey.
        cluster = _cluster(hello["cluster"])
        open_ports = set(hello["open_ports"])
        opened = (dataclasses.replace(task, port=None) if task.name in open_ports else task for task in cluster.tasks)
        mine = set(hello["tasks"])
        source = Source(cluster.source.dialect, hello["source"])
        job = Job(
            dataclasses.replace(cluster, tasks=tuple(opened), source=source),
            Choice(**hello["choice"]),
            Program(**hello["program"]),
            **{name: hello[name] for name in ("gpus_per_task", "environment", "folder", "verbose")},
        )
        own = [task for task in job.cluster.tasks if task.name in mine and hello["may_have_moved"]]
        if (moved := next((task for task in own if not is_local(task.host)), None)) is not None:
            raise ClusterError(f"{moved.name} belongs to the node {moved.host}, and its room is on another one now")
        planned = plan(job, lambda task: task.name in mine)
        if planned.refusal is not None:
            raise planned.refusal
        (folder / "log").mkdir()
        listening = {task.name for task in cluster.training_tasks if task.name in mine}
        self._await_ports(job.cluster, mine, hello["port_seconds"])
        files, longest_stop = JobFiles(folder / "log", folder), hello["silence"] + STOPPED_SECONDS
        self._tasks = LocalTasks(planned, files, listening, longest_stop=longest_stop)
        self._tasks.also_wait_for(launcher)
        launcher.say(
            {
                "hello": {
                    "version": __version__,
                    "address": _own_address(),
                    "unknown_hosts": _unknown({task.host for task in cluster.tasks if task.host}, launcher.beat),
                    "ports": {task.name: task.port for task in self._tasks.cluster.tasks if task.name in mine},
                    "warnings": list(planned.warnings),
                    "machine": _machine(),
                }
            }
        )

    def _await_ports(self, cluster: Cluster, mine: set[str], seconds: float) -> None:
        """Waits for the ports that an earlier agent of this host may still hold: it ends after the launcher has lost it."""
        taken = {task.port for task in cluster.tasks if task.name in mine and task.port is not None}
        deadline = time.monotonic() + seconds
        while (taken := {port for port in taken if not is_free(port)}) and time.monotonic() < deadline:
            select.select([self._launcher], [], [], PORT_POLL_SECONDS)
            self._early_messages += self._launcher.hear()
            if any("end" in message for message in self._early_messages):
                raise _Ended
            self._launcher.beat()

    def serve(self) -> None:
        """Serves until the launcher wants the end or is gone."""
        try:
            while True:
                heard, self._early_messages = [*self._early_messages, *self._launcher.hear()], []
                for message in heard:
                    self._obey(message)
                for event in self._tasks.poll(POLL_SECONDS, output=self._has_room):
                    self._pass_on(event)
                self._send_changed()
                self._launcher.beat()
        except _Ended:
            pass
        finally:
            last = self._tasks.close()
        for event in last:
            self._pass_on(event)

    def _obey(self, message: dict[str, Any]) -> None:
        if "start" in message:
            task = self._tasks.cluster.find(*_split(message["start"]))
            report = None
            if message["report"]:
                self._reporter = task.name
                report = str(self._reports / "report.json")
            self._tasks.start(task, message["env"], report, message["terminal"])
        elif "signal" in message:
            self._tasks.signal(message["tasks"], message["signal"])
        elif "cluster" in message:
            self._tasks.set_cluster(_cluster(message["cluster"]))
        elif "output" in message:
            self._has_room = message["output"]
        elif "end" in message:
            raise _Ended

    def _pass_on(self, event: Event) -> None:
        say = self._launcher.say
        if isinstance(event, Output):
            say({"output": event.task, "last": event.is_last}, event.data)
        elif isinstance(event, Ready):
            say({"ready": True})
        else:
            if isinstance(event, Exited) and event.task == self._reporter:
                self._send_changed()  # The launcher asks how the task has left `fit`.
                self._send_report(event.task)
            say(as_json(event))

    def _send_changed(self) -> None:
        """Sends progress, number of steps and the end of the program, where they have changed."""
        for key, suffix in BESIDE_REPORT.items():
            path = self._reports / f"report.json{suffix}"
            try:
                written_at = path.stat().st_mtime_ns
                if written_at != self._sent_at.get(key):
                    self._launcher.say({key: self._reporter}, path.read_bytes())
                    self._sent_at[key] = written_at
            except OSError:  # There is none yet, or the task has removed it on a full disk.
                if self._sent_at.pop(key, None) is not None:
                    self._launcher.say({key: self._reporter}, b"")

    def _send_report(self, name: str) -> None:
        try:
            data = (self._reports / "report.json").read_bytes()
        except OSError:
            return
        self._launcher.say({"report": name}, data)


def _cluster(config: dict[str, Any]) -> Cluster:
    cluster = read(config)
    assert isinstance(cluster, Cluster)
    return cluster


def _split(name: str) -> tuple[str, int]:
    job, _, index = name.partition(":")
    return job, int(index)


def _own_address() -> str:
    """Returns the address at which others reach this host; empty if nothing says it."""
    if os.environ.get("SSH_CONNECTION"):
        return os.environ["SSH_CONNECTION"].split()[2]
    if launcher := os.environ.get("SLURM_LAUNCH_NODE_IPADDR"):
        with socket.socket(socket.AF_INET6 if ":" in launcher else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((launcher, 9))  # Sends nothing, but chooses the interface.
                return str(probe.getsockname()[0])
            except OSError:
                return ""
    return ""


def _machine() -> str:
    """Returns what tells this machine from others; empty if no GPUs are visible, which tasks could take from each other."""
    if not visible(machine.installed(), os.environ):
        return ""
    try:
        return machine.boot()  # A container, with a namespace of its own, may have GPUs of its own.
    except OSError:
        return ""


def _unknown(hosts: set[str], beat: Callable[[], None]) -> list[str]:
    """Returns the hosts that have no address here, or whose address is not found in time. Calls `beat` meanwhile."""
    known: set[str] = set()

    def look_up(host: str) -> None:
        try:
            socket.getaddrinfo(host, 0)
        except OSError:
            return
        known.add(host)

    threads = [threading.Thread(target=look_up, args=(host,), daemon=True) for host in hosts]
    deadline = time.monotonic() + RESOLVE_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(BEAT_SECONDS / 2)
            beat()
    return sorted(hosts - known)


def _check(hello: dict[str, Any]) -> None:
    """Changes into the folder of the job. Raises ClusterError if the folder or the program is not here."""
    hello["folder"] = os.path.expanduser(hello["folder"])
    folder, program = hello["folder"], Program(**hello["program"])
    try:
        os.chdir(folder)
    except OSError as error:
        raise ClusterError(
            f"the working folder {folder} cannot be used there: {error.strerror}; name another (--ssh_folder, --ray_folder)"
        ) from error
    if program.fault is not None:
        raise ClusterError(f"there is no program {program.script} in {folder} there; copy it, or use a shared folder")


def main(hello: dict[str, Any]) -> NoReturn:
    """Runs the agent for the job that the launcher's first line describes."""
    launcher = _Launcher(hello["silence"])
    if "SLURM_JOB_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # The launcher gets it, too, and ends the tasks in order.
        for number in FOR_THE_PROGRAM:  # `scancel --signal=USR1`. What is started here does not inherit a handler.
            signal.signal(number, lambda *_: None)
    own = OwnFolder(AGENT)
    code = 1
    try:
        _check(hello)
        _Agent(launcher, hello, Path(own.name)).serve()
        code = 0
    except _Ended:
        pass
    except (ClusterError, OSError) as error:
        try:
            launcher.say({"failed": str(error)})
        except _Ended:
            pass
    finally:
        own.cleanup()
    sys.stderr.flush()
    os._exit(code)  # Threads that look up a name may still wait.
