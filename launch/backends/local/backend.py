"""The back end `local`: `plan` divides this machine among the tasks, `LocalTasks` runs them."""

import dataclasses
import os
import selectors
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.errors import Source
from tfdist.launch.backends.interface import Attached, Backend, Plan
from tfdist.launch.backends.listening import ListenProbe
from tfdist.launch.backends.local.memory import MemoryProbe
from tfdist.launch.backends.local.pipes import Pipe
from tfdist.launch.backends.local.ports import HeldPorts, is_local, names_this_machine
from tfdist.launch.backends.local.processes import LocalProcesses
from tfdist.launch.backends.local.resources import Resources
from tfdist.launch.backends.local.stacks import Stacks
from tfdist.launch.backends.local.use_probe import UseProbe
from tfdist.launch.jobs.events import Event, Exited, Lost, NotStarted, Output, Started
from tfdist.launch.jobs.job import Job, JobFiles


def plan(job: Job, is_here: Callable[[Task], bool] | None = None) -> Plan:
    """Plans a job on this machine.

    Args:
        job: the job.
        is_here: tells which tasks run on this machine. Default: all, if every host is this machine; else the plan is refused,
            and holds what the tasks get whose hosts are named like this machine.
    """
    refusal = None
    if is_here is None:
        elsewhere = next((task for task in job.cluster.tasks if not is_local(task.host)), None)
        if elsewhere is not None:
            refusal = job.cluster.source.error(
                f"{elsewhere.name} is on {elsewhere.host}, and --backend local starts tasks on this machine only; start them "
                "there with --backend ssh, start the program there with its TF_CONFIG (--dry_run prints it), or run all tasks "
                "here with --local"
            )
        is_here = (lambda task: names_this_machine(task.host)) if refusal else lambda task: True
    here = [task for task in job.cluster.tasks if is_here(task)]
    resources = Resources(here, job.choice.strategy, job.gpus_per_task)
    visible = resources.plan.visible
    if (job.gpus_per_task or 0) > len(visible):
        flag = Source("flags", f"--gpus_per_task {job.gpus_per_task}")
        refusal = refusal or flag.error(f"this process sees {len(visible)} GPUs on this machine")
    gpus = f"GPU {', '.join(visible)}" if visible else "no GPU"
    cores = f"{resources.cores} core{'s' * (resources.cores > 1)}"
    return Plan(
        dataclasses.replace(job, cluster=job.cluster.addressed()),
        environment={task.name: resources.environment(task, os.environ) for task in here},
        open_ports=frozenset(task.name for task in job.cluster.tasks if task.port is None),
        notes=(("machine", f"{cores}, {gpus} to use here"),),
        warnings=tuple(resources.plan.warnings()),
        refusal=refusal,
    )


_kept: "list[LocalProcesses]" = []
"""The parent of tasks that have ended, for the tasks that are started next: it has imported TensorFlow."""


def start(plan: Plan, files: JobFiles) -> "LocalTasks":
    """Holds the ports, and starts the parent of all tasks, unless one is kept.

    Raises ClusterError if a described port is taken.
    """
    return LocalTasks(plan, files, {task.name for task in plan.job.cluster.training_tasks})


def keep(tasks: Any) -> list[Event]:
    """Closes `LocalTasks`, and keeps their parent for those that `start` starts next. See `Attached`."""
    assert isinstance(tasks, LocalTasks)
    return tasks.close(keep=True)


def release() -> None:
    """Ends the parent that is kept, if there is one."""
    while _kept:
        _kept.pop().close()


class LocalTasks:
    """Tasks of a job on this machine: a `TaskRunner`.

    Attributes:
        cluster: the cluster, with the addresses of these tasks.
    """

    def __init__(self, plan: Plan, files: JobFiles, listening: set[str], *, longest_stop: float = 0.0) -> None:
        """Holds the ports of the tasks that will listen here, `listening`, and starts the fork server.

        For `longest_stop` see `LocalProcesses`.

        Raises:
            ClusterError: if a described port is taken.
        """
        self._ports = HeldPorts()
        self.cluster: Cluster = self._ports.hold(plan.described_cluster, listening)
        # By this name, because the host of the description may be one that only others know.
        tasks = [dataclasses.replace(task, host="localhost") for task in self.cluster.training_tasks if task.name in listening]
        self._probe = ListenProbe(tasks if len(self.cluster.training_tasks) > 1 else ())
        removed = [files.report_dir] if files.report_dir and files.report_dir != files.log_dir else []
        planned = plan.with_cluster(self.cluster)
        if _kept and _kept[0].use_for(planned, removed):
            self._processes = _kept.pop()
        else:
            release()
            self._processes = LocalProcesses(planned, files.log_dir, removed=removed, adopt=True, longest_stop=longest_stop)
        self._pipes: dict[str, Pipe] = {}
        self._pids: dict[str, int] = {}
        self._memory = MemoryProbe()
        self._use = UseProbe()
        self._stacks = Stacks()
        self._pending: list[Event] = []
        self._output = selectors.DefaultSelector()  # Of everything.
        self._control = selectors.DefaultSelector()  # Of the fork server only.
        for selector in (self._output, self._control):
            selector.register(self._processes, selectors.EVENT_READ)

    @property
    def log(self) -> Path | None:
        """The log of the fork server."""
        return self._processes.log

    def also_wait_for(self, file: Any) -> None:
        """Makes `poll` return early when `file` can be read. Its owner reads it."""
        self._output.register(file, selectors.EVENT_READ)
        self._control.register(file, selectors.EVENT_READ)

    def set_cluster(self, cluster: Cluster) -> None:
        """Sets the cluster that tasks started from now on find in TF_CONFIG."""
        self._processes.plan = self._processes.plan.with_cluster(cluster)

    def poll(self, timeout: float, *, output: bool = True) -> list[Event]:
        """See `TaskRunner`."""
        events, self._pending = self._pending, []
        events += [*self._probe.events(), *self._memory.events(self._pids), *self._stacks.events(self._pids)]
        events += self._use.events(self._pids)
        selector = self._output if output else self._control
        for key, _ in selector.select(0 if events else timeout):
            if isinstance(key.fileobj, Pipe):
                data = key.fileobj.read()
                if data is not None:
                    events.append(Output(key.fileobj.task, data, is_last=not data))
                    self._stacks.printed(key.fileobj.task)
                if data == b"":
                    self._output.unregister(key.fileobj)
            elif key.fileobj is self._processes:
                events.append(self._processes.read())
                self._note(events[-1])
                if isinstance(events[-1], Lost):
                    self._output.unregister(self._processes)
                    self._control.unregister(self._processes)
        return events

    def start(self, task: Task, environment: Mapping[str, str], report: str | None, terminal: bool) -> None:
        """See `TaskRunner`."""
        self._close_pipe(task.name)
        if report is not None:
            environment = {**environment, "TFDIST_REPORT": report}
        try:
            pipe = Pipe(task.name, terminal)
        except OSError as error:  # Too many open files.
            self._pending.append(NotStarted(task.name, note=str(error)))
            return
        try:
            self._processes.start(task, pipe.write_end, environment)
        except OSError as error:
            self._pending.append(NotStarted(task.name, note=str(error)))
        pipe.started()
        self._pipes[task.name] = pipe
        self._output.register(pipe, selectors.EVENT_READ)

    def _note(self, event: Event) -> None:
        if isinstance(event, Started):
            self._pids[event.task] = event.pid
        elif isinstance(event, Exited):
            self._pids.pop(event.task, None)

    def signal(self, names: list[str], number: int) -> None:
        """See `TaskRunner`. After SIGQUIT, py-spy prints the Python stacks of the tasks that do not."""
        if number == signal.SIGQUIT:
            for name in names:
                self._stacks.ask(name)
        self._processes.signal(names, number)

    def close(self, *, keep: bool = False) -> list[Event]:
        """See `TaskRunner`. With `keep`, the next tasks of this process have the same parent."""
        self._stacks.close()
        if keep and self._processes.clear():
            _kept.append(self._processes)
        else:
            self._processes.close()
        for name in list(self._pipes):
            self._close_pipe(name)
        self._output.close()
        self._control.close()
        self._probe.close()
        self._ports.close()
        events, self._pending = self._pending, []
        return events

    def _close_pipe(self, name: str) -> None:
        pipe = self._pipes.pop(name, None)
        if pipe is None:
            return
        if pipe.fileno() in self._output.get_map():
            self._output.unregister(pipe)
        self._pending += [Output(name, data) for data in pipe.close()]
        self._pending.append(Output(name, b"", is_last=True))


BACKEND = Backend(name="local", title="processes on this machine", plan=plan, runs=Attached(start, keep=keep, release=release))
