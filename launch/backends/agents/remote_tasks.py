"""`RemoteTasks`: tasks on other hosts, run by an agent on each, however the agents are started."""

import dataclasses
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tfdist
from tfdist.cluster import Cluster, Task
from tfdist.launch.backends.agents.frames import BESIDE_REPORT, SILENCE_SECONDS, STOPPED_SECONDS
from tfdist.launch.backends.agents.link import Link
from tfdist.launch.backends.interface import Plan
from tfdist.launch.jobs.events import Event, Exited, Lost, NotStarted, Output, Ready, Unreachable, from_json
from tfdist.launch.jobs.job import JobFiles, without_task
from tfdist.messages import printable
from tfdist.version import __version__

CLOSE_SECONDS = 7.5
"""How long the agents may take to end their tasks, before ssh is killed."""

BUFFERED_BYTES = 1 << 20
"""Output that waits here for a slow reader, before the agents are told to keep theirs."""

SENT_PREFIXES = ("TF_", "TFDIST_", "KERAS_", "XLA_", "NCCL_", "GRPC_", "OMP_", "PYTHON")
"""Variables of the launcher that the tasks get; `--env` adds others."""

_left_at: dict[str, float] = {}
"""When this process lost the connection to an agent that may still run, by host."""

NOT_SENT = {"TF_CONFIG", "TFDIST_STATE_DIR", "PYTHONHOME"}


def by_host(cluster: Cluster) -> dict[str, list[Task]]:
    """Returns the tasks of each host, by its name in lower case."""
    hosts: dict[str, list[Task]] = {}
    for task in cluster.tasks:
        hosts.setdefault(task.machine, []).append(task)
    return hosts


class RemoteTasks:
    """Tasks on other hosts: a `TaskRunner`."""

    def __init__(
        self,
        plan: Plan,
        files: JobFiles,
        command: Callable[[str], list[str]],
        folder: str,
        silence: float = SILENCE_SECONDS,
        *,
        hosts: Mapping[str, list[Task]] | None = None,
        popen: Callable[..., Any] = subprocess.Popen,
    ) -> None:
        """Starts the agent of each host.

        Args:
            plan: the plan.
            files: the folders of the job, on this machine.
            command: returns the command line that starts the agent on a host (`BOOTSTRAP`), with its standard input and output.
            folder: the working folder on the hosts.
            silence: seconds without a word after which a connection is lost.
            hosts: the tasks of each agent, by the name that `command` gets, where a system chooses the hosts. One that
                is started again may get another host; a lost one does not come back. Default: an agent for each host.
            popen: starts the command; called like `subprocess.Popen`.
        """
        self._plan = plan
        self._command = command
        self._popen = popen
        self._folder = folder
        self._silence = silence
        self._log_dir = files.log_dir
        self._cluster = plan.job.cluster
        self._hosts = by_host(self._cluster) if hosts is None else dict(hosts)
        self._has_own_names = hosts is not None
        self._host_of = {task.name: host for host, tasks in self._hosts.items() for task in tasks}
        self._hellos: dict[str, dict[str, Any]] = {}
        self._ready: set[str] = set()
        self._running: set[str] = set()
        self._to_start: dict[str, list[dict[str, Any]]] = {}  # What waits for an agent that is not ready.
        self._reports: dict[str, str] = {}
        self._events: list[Event] = []
        self._output: list[Output] = []
        self._has_room = True
        self._is_ready = False
        self._is_refused = False  # By what is installed on a host.
        self._is_closing = False
        self._selector = selectors.DefaultSelector()
        self._links: dict[str, Link] = {}
        self._connect_all()

    @property
    def log(self) -> Path | None:
        """None: what ssh, or another command, says is part of the reason of `Lost`."""
        return None

    def poll(self, timeout: float, *, output: bool = True) -> list[Event]:
        """See `TaskRunner`."""
        for host, link in list(self._links.items()):
            link.tick()
            if link.lost is not None:
                self._lose(host)
        waits = not self._events and not (output and self._output)
        for key, _ in self._selector.select(timeout if waits else 0):
            link = key.fileobj  # type: ignore[assignment]
            for message, data in link.hear():
                self._handle(link.host, message, data)
            if link.lost is not None:
                self._lose(link.host)
        self._regulate(output)
        events, self._events = self._events, []
        if output:
            # Output first: what a task printed before it exited is then in its log when the exit is judged.
            events, self._output = [*self._output, *events], []
        return events

    def start(self, task: Task, environment: Mapping[str, str], report: str | None, terminal: bool) -> None:
        """See `TaskRunner`."""
        host = self._host_of[task.name]
        if report is not None:
            self._reports[task.name] = report
        if host not in self._links:
            try:
                self._connect(host)  # Its tasks ended with the last connection.
            except OSError as error:
                self._events.append(NotStarted(task.name, note=str(error)))
                return
        self._running.add(task.name)
        message = {"start": task.name, "env": dict(environment), "report": report is not None, "terminal": terminal}
        if host in self._ready:
            self._links[host].say(message)
        else:
            self._to_start.setdefault(host, []).append(message)

    def signal(self, names: list[str], number: int) -> None:
        """See `TaskRunner`. A task whose start waits for an agent is not started after a signal that ends it."""
        if number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
            for host, starts in self._to_start.items():
                ended = [message["start"] for message in starts if message["start"] in names]
                self._to_start[host] = [message for message in starts if message["start"] not in ended]
                self._running.difference_update(ended)
                self._events += [Exited(name, -number) for name in ended]
        for host, link in self._links.items():
            if mine := [name for name in names if self._host_of[name] == host]:
                link.say({"signal": int(number), "tasks": mine})

    def close(self) -> list[Event]:
        """See `TaskRunner`."""
        self._is_closing = True
        for link in self._links.values():
            link.say({"end": True})
        deadline = time.monotonic() + CLOSE_SECONDS
        last: list[Event] = []
        while self._links and time.monotonic() < deadline:
            last += self.poll(0.1)
        for host in list(self._links):
            _left_at[self._shown(host)] = time.monotonic()
            self._drop(host)
        self._selector.close()
        return [event for event in last if isinstance(event, Output)]

    def _connect_all(self) -> None:
        try:
            for host in self._hosts:
                self._connect(host)
        except OSError:  # Too many open files or processes.
            for link in self._links.values():
                link.close()
            raise

    def _connect(self, host: str) -> None:
        job = self._plan.job
        first_line = {
            "env": {
                name: value for name, value in os.environ.items() if name.startswith(SENT_PREFIXES) and name not in NOT_SENT
            },
            "path": _module_folders(),
            "cluster": without_task(self._cluster),
            "source": self._cluster.source.name,
            "open_ports": [] if self._is_ready else sorted(self._plan.open_ports),
            "tasks": [task.name for task in self._hosts[host]],
            "choice": dataclasses.asdict(job.choice),
            "program": dataclasses.asdict(job.program),
            "gpus_per_task": job.gpus_per_task,
            "environment": dict(job.environment),
            "folder": self._folder,
            "verbose": job.verbose,
            "silence": self._silence,
            "port_seconds": self._port_seconds(host),
            "may_have_moved": self._has_own_names and self._is_ready,
        }
        command = self._command(host if self._has_own_names else self._shown(host))
        link = Link(host, command, first_line, self._log_dir / f"agent-{host.replace(':', '_')}.log", self._popen)
        self._links[host] = link
        self._selector.register(link, selectors.EVENT_READ)

    def _port_seconds(self, host: str) -> float:
        """Returns how long an earlier agent of this host, whose connection was lost, may still hold the ports of its tasks."""
        if (lost_at := _left_at.get(self._shown(host))) is None:
            return 0.0
        return max(0.0, lost_at + self._silence + STOPPED_SECONDS + CLOSE_SECONDS - time.monotonic())

    def _handle(self, host: str, message: dict[str, Any], data: bytes) -> None:
        if "output" in message:
            self._output.append(Output(message["output"], data, message["last"]))
        elif "event" in message:
            self._note(host, from_json(message))
        elif "report" in message or not BESIDE_REPORT.keys().isdisjoint(message):
            self._write_report(message, data)
        elif "hello" in message:
            self._greet(host, message["hello"])
        elif "ready" in message:
            self._note_ready(host)
        elif "failed" in message:
            self._links[host].lost = printable(message["failed"])

    def _note(self, host: str, event: Event) -> None:
        if isinstance(event, Lost):
            self._links[host].lost, self._is_refused = printable(event.reason), event.refused
            return
        if isinstance(event, Exited):
            self._running.discard(event.task)
        self._events.append(event)

    def _note_ready(self, host: str) -> None:
        """Lets the tasks start that wait for the agent of a host, and says so when all agents are ready."""
        self._ready.add(host)
        for start in self._to_start.pop(host, ()):
            self._links[host].say(start)
        if self._ready == set(self._hosts) and not self._is_ready:
            self._is_ready = True
            said = [(name, text) for name in self._hosts for text in self._hellos[name]["warnings"]]
            warnings = (f"{self._shown(name)}: {printable(text)}" for name, text in said)
            self._events.append(Ready(self._cluster, (*warnings, *self._named_twice())))

    def _greet(self, host: str, hello: dict[str, Any]) -> None:
        """Notes the ports of a host; tells all hosts the addresses when the last has said its ports."""
        if hello["version"] != __version__:
            self._links[host].lost = f"tfdist {hello['version']} is installed there, and {__version__} here"
            return
        self._hellos[host] = hello
        if self._is_ready or self._hellos.keys() != self._hosts.keys():
            return
        # A name in the description may be one of the user's ssh configuration only.
        unknown = {name for said in self._hellos.values() for name in said["unknown_hosts"]}
        tasks = []
        for task in self._cluster.tasks:
            said = self._hellos[self._host_of[task.name]]
            address = said["address"] if task.host in unknown and said["address"] else task.host
            tasks.append(dataclasses.replace(task, host=address, port=said["ports"][task.name]))
        self._cluster = dataclasses.replace(self._cluster, tasks=tuple(tasks))
        for link in self._links.values():
            link.say({"cluster": without_task(self._cluster)})

    def _named_twice(self) -> Iterator[str]:
        """Yields a warning for each machine with GPUs that has an agent for each of several names."""
        names: dict[str, list[str]] = {}
        for host in () if self._has_own_names else self._hosts:  # Else the system has divided the GPUs.
            names.setdefault(self._hellos[host].get("machine", ""), []).append(self._shown(host))
        for machine, hosts in names.items():
            if machine and len(hosts) > 1:
                which = " and ".join(hosts)
                yield f"{which} are one machine, and the tasks of each name get all its GPUs; give all of them one name"

    def _write_report(self, message: dict[str, Any], data: bytes) -> None:
        key = next(name for name in ("report", *BESIDE_REPORT) if name in message)
        report = self._reports.get(message[key])
        if report is not None:
            path = Path(f"{report}{BESIDE_REPORT.get(key, '')}")
            part = Path(f"{path}.part")
            try:
                part.write_bytes(data)
                part.rename(path)
            except OSError:
                pass  # A full disk; the summary says nothing about steps then.

    def _lose(self, host: str) -> None:
        """Reports what a lost connection means: before the start of the tasks, the end of the job."""
        reason, is_away = self._links[host].lost, not self._links[host].has_spoken
        had_started = host in self._ready
        if host in self._hellos and not self._is_closing:
            _left_at[self._shown(host)] = time.monotonic()
        self._drop(host)
        if not self._is_ready:
            self._events.append(Lost(f"{self._shown(host)} cannot be used: {reason}", self._is_refused, is_away))
            return
        why = f"{self._shown(host)}: {reason}"
        for name in sorted(self._running):
            if self._host_of[name] == host:
                self._running.discard(name)
                self._events.append(Unreachable(name, note=why, had_started=had_started or self._has_own_names))

    def _shown(self, host: str) -> str:
        """Returns the name of a host as the user wrote it: names in a configuration of ssh may have capitals."""
        return self._hosts[host][0].host or host

    def _drop(self, host: str) -> None:
        link = self._links.pop(host)
        self._ready.discard(host)
        self._to_start.pop(host, None)
        self._selector.unregister(link)
        link.close()

    def _regulate(self, output: bool) -> None:
        """Tells the agents to keep the output of their tasks while nobody takes it here."""
        has_room = output or sum(len(chunk.data) for chunk in self._output) < BUFFERED_BYTES
        if has_room != self._has_room:
            self._has_room = has_room
            for link in self._links.values():
                link.say({"output": has_room})


def _module_folders() -> list[str]:
    """Returns where the hosts find modules besides their installed packages: PYTHONPATH, and the clone that runs here."""
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    clone = str(Path(tfdist.__file__).parent.parent)
    return folders if "-packages" in clone or clone in folders else [*folders, clone]
