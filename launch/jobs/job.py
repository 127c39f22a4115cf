"""`Job`: what a back end runs. It holds a cluster, its strategy and a program. `JobFiles`: where its output goes."""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfdist.choice import Choice
from tfdist.cluster import Cluster, Task
from tfdist.strategies import replaceable_jobs, serving_jobs


@dataclass(frozen=True)
class Program:
    """The program of a task: a script, a module, or a server alone.

    Attributes:
        script: path of the script, run as `python SCRIPT ARGS`; or None.
        module: name of the module, run as `python -m MODULE ARGS`; or None. Without a script and a module the task only
            serves, without a program of the user.
        args: the arguments of script or module.
    """

    script: str | None = None
    module: str | None = None
    args: list[str] = field(default_factory=list)

    @property
    def fault(self) -> str | None:
        """Why there is no such script in the current folder, as the end of a sentence; None if there is, or it is a module."""
        if self.script is None or os.path.isfile(self.script):
            return None
        if not os.path.isdir(self.script):
            return "there is no such program"
        has_main = os.path.isfile(os.path.join(self.script, "__main__.py"))  # As in `python FOLDER`.
        return None if has_main else "this is a folder without a __main__.py; name a program"

    @property
    def words(self) -> list[str]:
        """The script, or the module, as behind the name of the interpreter."""
        assert self.script is not None or self.module is not None
        return [self.script] if self.script is not None else ["-m", str(self.module)]

    def command(self, python: str) -> list[str]:
        """Returns the command line that runs a script or module with the interpreter `python`."""
        return [python, *self.words, *self.args]


@dataclass(frozen=True)
class Job:
    """A cluster, the program that its tasks run, and what the user asked for besides.

    Attributes:
        cluster: the prepared cluster.
        choice: its strategy.
        program: what every task runs.
        gpus_per_task: number of GPUs for each task that computes; None to go by the description.
        environment: variables for every task that the user gave (`--env`). They may be secret: nobody shows their values.
        folder: the working folder of the tasks.
        verbose: whether TensorFlow logs everything instead of errors only.
        options: values of the back end's own flags, by name.
        flags: the flags of `tfdist run` that describe this job, for a back end that runs the launcher elsewhere. They are not
            those of back ends, and `--env` has no values.
    """

    cluster: Cluster
    choice: Choice
    program: Program
    gpus_per_task: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: str = field(default_factory=os.getcwd)
    verbose: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    def path(self, path: str) -> str:
        """Returns a path as the tasks have to be told it: a relative one is in their folder, which they are in."""
        return os.path.join(self.folder, path) if os.path.isabs(self.folder) else path

    @property
    def serving(self) -> tuple[Task, ...]:
        """The tasks that serve during the training instead of running the program to its end."""
        jobs = serving_jobs(self.choice.strategy)
        return tuple(task for task in self.cluster.training_tasks if task.job in jobs)

    @property
    def training(self) -> tuple[Task, ...]:
        """The tasks that run the training program: the chief, or all workers."""
        serving = self.serving
        return tuple(task for task in self.cluster.training_tasks if task not in serving)

    @property
    def reporter(self) -> Task:
        """The task whose steps and metrics are those of the job: the chief, else the first that trains."""
        return self.training[0]

    @property
    def replaceable(self) -> tuple[Task, ...]:
        """The tasks without which the others train on until they are restarted. Evaluators are not among them."""
        jobs = replaceable_jobs(self.choice.strategy)
        return tuple(task for task in self.cluster.training_tasks if task.job in jobs)

    @property
    def awaited(self) -> tuple[Task, ...]:
        """The `replaceable` tasks that hold parameters: while one of them is gone, the training waits for it."""
        return tuple(task for task in self.replaceable if task in self.cluster.parameter_tasks)

    def has_worker_group(self, running: Collection[str]) -> bool:
        """Returns whether some worker group can train, if of the `replaceable` tasks only these run (`job:index`).

        It needs all its tasks, and all that are `awaited`.
        """
        if not all(task.name in running for task in self.awaited):
            return False
        return any(all(task.name in running for task in tasks) for tasks in self.cluster.group_tasks)

    @property
    def spare(self) -> tuple[Task, ...]:
        """The workers for which there is room, and with which the job does not begin (scaling.py)."""
        begins = self.cluster.min_workers
        return () if begins is None else self.cluster.job("worker")[begins:]

    @property
    def loss_of_a_worker(self) -> str:
        """What the loss of a replaceable task means for the training until the task is restarted, as part of a sentence."""
        if len(self.cluster.worker_groups) > 1:
            return "the training continues"
        twice = self.choice.strategy == "parameter_server"
        return "the training waits for it" + ", and variables that its last step had updated are updated twice" * twice


def without_task(cluster: Cluster) -> dict[str, Any]:
    """Returns a cluster as TF_CONFIG without a task, which `tfdist.read` reads."""
    first = cluster.tasks[0]
    return {name: value for name, value in cluster.tf_config(first.job, first.index).items() if name != "task"}


@dataclass(frozen=True)
class JobFiles:
    """The files of a job on the machine of its launcher.

    Attributes:
        log_dir: existing folder for the output of the tasks.
        report_dir: existing folder for the report of steps and metrics; None for `log_dir`.
        is_restart: whether all tasks of the job have been started before.
    """

    log_dir: Path
    report_dir: Path | None = None
    is_restart: bool = False

    @property
    def report(self) -> Path:
        """The file in which the reporter writes steps and metrics, where the program calls `fit`."""
        return (self.report_dir or self.log_dir) / "report.json"

    def read_report(self) -> dict[str, Any]:
        """Returns what the reporter has written; an empty dict if it has written nothing."""
        try:
            report: dict[str, Any] = json.loads(self.report.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return report

    def log(self, task: Task) -> Path:
        """Returns the path of the file that holds the output of `task`."""
        return self.log_dir / task.log_name
