"""The one interface between the launcher and the places where tasks run. `docs/backends.md` has the smallest complete back end.

A `Backend` is a value: a name, a function `plan`, and one of two parts.

* `Attached`: the tasks run as long as the launcher does. Its supervisor starts each task, gets `tfdist.launch.jobs.events`, and
  decides about restarts and the end of the job. `local` and `ssh` are attached. With `--detach` the launcher itself goes to the
  background, so an attached back end needs nothing for `status`, `logs` and `cancel`: `BackgroundJobs` answers them.
* `Detached`: a system with a supervision of its own takes the whole job (`sbatch`, Kubernetes). The launcher only hands it
  over, and asks that system later, from any process, by the id that `submit` returned.

`plan` starts and changes nothing. `--dry_run` shows the plan, and the same value is started or submitted.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from tfdist.cluster import Cluster, Task
from tfdist.errors import ClusterError
from tfdist.launch.jobs.events import Event
from tfdist.launch.jobs.job import Job, JobFiles
from tfdist.launch.jobs.job_status import JobStatus


@dataclass(frozen=True)
class Plan:
    """What a back end is about to start. It holds everything that the start needs, except ports that are still open.

    Attributes:
        job: the job. `job.cluster` has an address for each task; if the back end `holds_ports`, a port that `open_ports` names
            may still change at the start, to one that is free.
        environment: variables that the back end sets for each task besides TF_CONFIG, by the name of the task.
        open_ports: names of the tasks whose port the description leaves open.
        notes: what else `--dry_run` shows, as pairs of a word and a line: `("machine", "2 cores, no GPU to use here")`.
        warnings: sentences for `--dry_run` and for the start of the job.
        refusal: why this plan can be shown, but not started or submitted; or None.
        request: what a system receives word for word: a batch script, manifests. Empty for attached back ends.
    """

    job: Job
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    open_ports: frozenset[str] = frozenset()
    notes: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    refusal: ClusterError | None = None
    request: str = ""

    @property
    def described_cluster(self) -> Cluster:
        """The cluster of the job, in which the ports that may change are open again."""
        tasks = (replace(task, port=None) if task.name in self.open_ports else task for task in self.job.cluster.tasks)
        return replace(self.job.cluster, tasks=tuple(tasks))

    def with_cluster(self, cluster: Cluster) -> "Plan":
        """Returns the plan with a cluster in which no port is open."""
        return replace(self, job=replace(self.job, cluster=cluster), open_ports=frozenset())


class TaskRunner(Protocol):
    """The tasks of an attached back end. One thread calls it. No method raises because of a task: failures are events.

    Every task ends with `close`, and also when this process dies, whatever kills it.

    Attributes:
        log: file with the messages of the back end itself, shown when it fails; None if there is none.
    """

    @property
    def log(self) -> Path | None:
        """See the class."""

    def poll(self, timeout: float, *, output: bool = True) -> list[Event]:
        """Returns what has happened since the last call; waits for at most `timeout` seconds until something has.

        The first event is `Ready` (or `Lost`). `Exited` of a task may come before the last `Output` of that task.

        Args:
            timeout: seconds.
            output: whether to return `Output`. While it is False, what tasks print stays where it is, and a task that prints
                more than a pipe holds waits. The launcher asks for no output while nobody reads its own.
        """

    def start(self, task: Task, environment: Mapping[str, str], report: str | None, terminal: bool) -> None:
        """Starts a task after `Ready`, or starts it again after it has exited. Reports `NotStarted` if that fails.

        What an earlier process of the task has left in its process group is killed first.

        Args:
            task: a task of the cluster in `Ready`.
            environment: variables of this task besides those of the plan and TF_CONFIG. They win.
            report: file on this machine for the steps and metrics of the task: the task finds a path in `TFDIST_REPORT`,
                and what it has written there is in `report` when its `Exited` is returned. None: it reports nothing.
            terminal: whether the task should get a terminal, for a progress bar on one line. A wish.
        """

    def signal(self, names: list[str], number: int) -> None:
        """Sends a signal to the tasks with these names; ignores tasks that do not run.

        SIGUSR1, SIGUSR2 and the first SIGTERM go to the process of a task alone: the program may make another step and save,
        with the processes that read its data. When it has ended after SIGTERM, what is left of its process group gets SIGTERM.
        All other signals go to the process group.
        """

    def close(self) -> list[Event]:
        """Ends every task, with the processes that it started, within 8 seconds; returns what was still to be read."""


@dataclass(frozen=True)
class Attached:
    """The part of a back end whose tasks the launcher supervises.

    Attributes:
        start: `start(plan, files)` begins to prepare (imports, connections) and returns without waiting for it. It raises
            `ClusterError` if it cannot succeed, for example because a described port is taken, and `OSError` if this machine
            has no files or processes left for it; nothing runs then.
        can_restart: whether `TaskRunner.start` can start a task again while others run. If not, the training continues without
            a task that would be restarted.
        holds_ports: whether no other program can take a port between its choice and the moment when its task listens.
        keep: closes a `TaskRunner` as its `close` does, and keeps what the next `start` of the same job can use. None: nothing.
        release: ends what was kept and not used. Does nothing if nothing was.
    """

    start: Callable[[Plan, JobFiles], TaskRunner]
    can_restart: bool = True
    holds_ports: bool = True
    keep: Callable[[TaskRunner], list[Event]] | None = None
    release: Callable[[], None] = lambda: None


_TASK_LINE = re.compile(r"([a-z]+:\d+) +\| (.*)", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class LogLine:
    """A line that a task has printed.

    Attributes:
        task: `job:index`; empty for a line of the system or of the launcher.
        text: the line, without its end.
    """

    task: str
    text: str

    @property
    def shown(self) -> str:
        """The line as a launcher shows it: behind the name of its task, if it has one."""
        return f"{self.task} | {self.text}" if self.task else self.text

    @classmethod
    def of_launcher(cls, line: str) -> "LogLine":
        """Returns a line that a launcher has shown, which begins with the name of its task if it has one."""
        match = _TASK_LINE.fullmatch(line)
        return cls(match[1], match[2]) if match else cls("", line)


class Detached(Protocol):
    """The part of a back end that hands the whole job over. Every method can be called from another process, by the id.

    All raise `BackendError` with one sentence: the system does not answer (`NoAnswerError`), it refuses, there is no such job.
    """

    def submit(self, plan: Plan) -> str:
        """Submits the plan; returns the id of the job, from which the handle `NAME://ID` is made. It holds no blanks."""

    def status(self, job_id: str) -> JobStatus:
        """Returns the state of the job and of its tasks."""

    def logs(self, job_id: str, task: str | None, follow: bool) -> Iterator[LogLine]:
        """Yields what the tasks have printed so far.

        Args:
            job_id: the id.
            task: `job:index`; None for all tasks.
            follow: whether to go on until the job has ended.
        """

    def cancel(self, job_id: str) -> None:
        """Ends the job, also one that still waits in a queue.

        Returns when the system has accepted it. Not an error if it has ended already.
        """


@dataclass(frozen=True)
class Backend:
    """A place where tasks run.

    Attributes:
        name: how `--backend` and handles name it: lower-case letters, digits and `_`.
        title: what it is, in a few words, for `--help`.
        plan: makes the plan of a job. Raises `ClusterError` for a cluster that cannot run there. It may look at this machine,
            but asks no other, and starts nothing.
        runs: `attached` or `detached` part.
        options: the flags of the back end: name, which begins with `name_` -> help. Their values are text, in `Job.options`;
            those not given are absent.
        tools: commands that it needs on this machine, for `tfdist doctor`.
        packages: packages of Python that it needs, beyond those of tfdist; the same.
    """

    name: str
    title: str
    plan: Callable[[Job], Plan]
    runs: Attached | Detached
    options: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


class BackendError(Exception):
    """A back end cannot do what it was asked; the message is one sentence."""


class NoAnswerError(BackendError):
    """The system gives no answer now. It may later, and its jobs go on meanwhile."""


def handle_of(backend: str, job_id: str) -> str:
    """Returns the handle of a job: `NAME://ID`."""
    return f"{backend}://{job_id}"
