"""`Resources`: the GPUs and cores of this machine that each task gets, as environment variables."""

import os
from collections.abc import Iterable, Mapping

from tfdist import machine
from tfdist.cluster import Task
from tfdist.devices import Plan, computes, plan, threads, visible


class Resources:
    """What the tasks of this machine get of it.

    Attributes:
        plan: the GPUs of the tasks on this machine.
        cores: number of its cores that may be used.
    """

    def __init__(self, tasks: Iterable[Task], strategy: str, gpus_per_task: int | None) -> None:
        """Distributes the GPUs that this process sees now over its tasks on this machine: `gpus_per_task` for each that
        computes; None to go by the description."""
        self._tasks = list(tasks)
        installed = machine.installed()
        gpus = visible(installed, os.environ)
        self.plan: Plan = plan(self._tasks, strategy, gpus, gpus_per_task, installed.variable)
        self.cores = machine.cores()
        self._training = sum(each.job != "evaluator" for each in self._tasks)
        self._computing = sum(computes(each, strategy) for each in self._tasks)

    def environment(self, task: Task, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns the variables of a task. Those of threads and memory that the user has set, in `environ`, stay."""
        gpus = self.plan.environment(task)
        if task.job == "evaluator":
            variables = threads(1, 1)  # It must not slow the training down.
            variables["TF_NUM_INTEROP_THREADS"] = "1"
        elif self._training > 1:
            variables = threads(self.cores, self._computing)
        else:
            variables = {}
        variables |= gpus
        return {name: value for name, value in variables.items() if name == self.plan.variable or name not in environ}
