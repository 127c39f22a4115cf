"""Which GPUs and how many threads each task of a machine gets. Pure functions of what there is; TensorFlow is not imported.

A description that does not mention GPUs does not mean that there are none: a task uses those that it can see, as TensorFlow
does. Several tasks of one machine would all take the first, and all memory of every other. So each task that computes gets its
own, in the order of the tasks, and the others get none. What a user or another launcher has decided stays: a variable that is
set limits what is distributed, and by hand it is the task's own.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdist.choice import SERVED
from tfdist.cluster import Cluster, Task
from tfdist.machine import Installed

GROWTH_VARIABLE = "TF_FORCE_GPU_ALLOW_GROWTH"
"""TensorFlow's variable for memory that grows on demand. Otherwise one process takes all memory of every GPU that it sees."""

THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
"""TensorFlow's variables for the threads inside an operation, and for operations side by side."""

LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "HOROVOD_LOCAL_RANK", "SLURM_LOCALID")
"""Variables of launchers that give all tasks of a machine the same environment otherwise."""

BOUND = ("SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_GPU_BIND")
"""Slurm's variables where it gives each task GPUs of its own."""


@dataclass(frozen=True)
class Share:
    """The GPUs of one task.

    Attributes:
        gpus: their ids; none to hide all.
        positions: the same as positions among the GPUs that were distributed.
        shared: whether other tasks use some of them too, so that memory has to grow on demand.
    """

    gpus: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()
    shared: bool = False


@dataclass(frozen=True)
class Plan:
    """The GPUs of the tasks of one machine.

    Attributes:
        variable: the environment variable that says which GPUs a process sees.
        visible: the ids of the GPUs that are distributed.
        shares: by task name. A task without a share sees what this process sees.
        unused: the ids that no task gets.
    """

    variable: str
    visible: tuple[str, ...]
    shares: Mapping[str, Share]
    unused: tuple[str, ...] = ()

    def environment(self, task: Task) -> dict[str, str]:
        """Returns the variables that give `task` its share; none for a task without a share."""
        share = self.shares.get(task.name)
        if share is None:
            return {}
        growth = {GROWTH_VARIABLE: "true"} if share.shared else {}
        return {self.variable: ",".join(share.gpus) or "-1", **growth}

    def warnings(self) -> list[str]:
        """Returns sentences about GPUs that stay unused or that several tasks share."""
        said = []
        if self.unused:
            names = ", ".join(self.unused)
            said.append(f"no task uses GPU {names}; describe more tasks or slots, or give each task more (--gpus_per_task)")
        sharing = [name for name, share in self.shares.items() if share.shared]
        if sharing:
            names = ", ".join(sharing)
            said.append(f"{names} share {len(self.visible)} GPUs, whose memory each takes as it needs it")
        return said


def visible(installed: Installed, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the ids of the GPUs that a process with these variables sees, by CUDA's rules.

    The first id that does not exist ends the list (CUDA C++ programming guide, "CUDA environment variables"); `-1` and an empty
    text hide all. HIP has the same rules, and also reads CUDA's variable.
    """
    gpus = installed.gpus
    lower = environ.get("ROCR_VISIBLE_DEVICES") if installed.variable == "HIP_VISIBLE_DEVICES" else None
    if lower is not None:  # The driver below HIP shows fewer, and counts them from 0.
        gpus = gpus[: len([word for word in lower.split(",") if word.strip()])]
    value = next((environ[name] for name in (installed.variable, "CUDA_VISIBLE_DEVICES") if name in environ), None)
    if value is None:
        return gpus
    ids: list[str] = []
    for word in (word.strip() for word in value.split(",")):
        named = word.startswith(("GPU-", "MIG-")) and bool(gpus)
        if word in ids or not (named or word in gpus or (word.isdecimal() and int(word) < len(gpus))):
            break
        ids.append(word)
    return tuple(ids)


def computes(task: Task, strategy: str) -> bool:
    """Returns whether a task computes steps. A chief with workers that serve only coordinates, and a ps only adds up."""
    return task.job == "worker" or (task.job == "chief" and strategy not in SERVED)


def plan(
    tasks: Sequence[Task],
    strategy: str,
    gpus: tuple[str, ...],
    per_task: int | None = None,
    variable: str = "CUDA_VISIBLE_DEVICES",
) -> Plan:
    """Distributes the GPUs of one machine, by their ids, over its tasks. Processes see those that `variable` names.

    A task gets `per_task` GPUs, else as many as the description says, else one for each slot. Where the description says
    neither, and all replicas of the strategy step together, the tasks get all GPUs in equal numbers. With fewer GPUs than that
    they take turns: GPUs are shared.
    """
    computing = [task for task in tasks if computes(task, strategy)]
    shares = {task.name: Share() for task in tasks if not computes(task, strategy)}
    if not gpus:
        return Plan(variable, gpus, shares)
    wanted = [_wanted(task, strategy, per_task) for task in computing]
    if all(number is None for number in wanted):
        wanted = [max(1, len(gpus) // max(1, len(computing)))] * len(computing)
    if strategy == "default" and per_task is None:
        return Plan(variable, gpus, shares, gpus[1:])  # TensorFlow sees all, and uses the first.
    places = _places([min(1 if number is None else number, len(gpus)) for number in wanted], len(gpus))
    users = Counter(place for own in places for place in own)
    for task, own in zip(computing, places, strict=True):
        shares[task.name] = Share(tuple(gpus[place] for place in own), own, any(users[place] > 1 for place in own))
    ordered = {task.name: shares[task.name] for task in tasks}
    return Plan(variable, gpus, ordered, tuple(gpu for place, gpu in enumerate(gpus) if not users[place]))


def _places(numbers: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Returns which of `count` GPUs each task gets, given how many it gets: they take turns, from the first GPU on."""
    begins = itertools.accumulate(numbers, initial=0)
    return [tuple((begin + i) % count for i in range(number)) for begin, number in zip(begins, numbers, strict=False)]


def with_gpus_per_task(cluster: Cluster, strategy: str, number: int) -> Cluster:
    """Returns `cluster` with `number` GPUs, and as many slots, for each task that computes; with 0, without GPUs.

    Raises:
        ClusterError: if the description puts slots into worker groups, and their number would change.
    """
    tasks = tuple(
        dataclasses.replace(task, slots=number or task.slots, gpus=number) if computes(task, strategy) else task
        for task in cluster.tasks
    )
    groups = cluster.worker_groups
    if any(old.slots != new.slots for old, new in zip(cluster.tasks, tasks, strict=True)):
        if groups != cluster.default_worker_groups:
            raise cluster.source.error(
                "the description puts slots into worker groups, so their number cannot change; describe them with these GPUs",
                field="--gpus_per_task",
            )
        groups = ()
    return dataclasses.replace(cluster, tasks=tasks, worker_groups=groups)


def own_plan(
    cluster: Cluster, task: Task, strategy: str, gpus: tuple[str, ...], installed: Installed, environ: Mapping[str, str]
) -> Plan | None:
    """Returns the plan of this machine as `task` makes it for itself, where a user or another launcher has started the tasks.

    Returns None where `task` keeps what it sees: it has the machine for itself, or somebody has chosen its GPUs.
    """
    tasks = _on_host_of(task, cluster)
    computing = [each for each in tasks if computes(each, strategy)]
    if not computes(task, strategy):
        is_alone = task.job == "evaluator" and not computing
    else:
        is_alone = len(computing) < 2 or _is_restricted(task, len(computing), gpus, installed, environ)
    return None if is_alone else plan(tasks, strategy, gpus, variable=installed.variable)


def own_threads(cluster: Cluster, task: Task, strategy: str, cores: int, is_bound: bool) -> dict[str, str]:
    """Returns the variables of `threads` for `task`, where a user or another launcher has started the tasks.

    Returns none where it has the machine, or cores of its own (`is_bound`), for itself.
    """
    computing = sum(computes(each, strategy) for each in _on_host_of(task, cluster))
    return threads(cores, computing) if computing > 1 and not is_bound else {}


def threads(cores: int, computing: int) -> dict[str, str]:
    """Returns the variables that give each of several tasks of a machine that compute its share of the cores.

    With one thread per core in every task, the tasks slow each other down.
    """
    share = max(1, cores // max(1, computing))
    return dict(zip(THREAD_VARIABLES, (str(share), str(max(2, share))), strict=True))


def _on_host_of(task: Task, cluster: Cluster) -> list[Task]:
    return [other for other in cluster.tasks if other.machine == task.machine]


def _wanted(task: Task, strategy: str, per_task: int | None) -> int | None:
    """Returns how many GPUs a task is to get; None where neither the user nor the description says it."""
    if per_task is not None:
        return per_task
    if task.gpus or task.slots > 1 or strategy in SERVED:
        return task.gpus or task.slots
    return None


def _is_restricted(task: Task, computing: int, gpus: tuple[str, ...], installed: Installed, environ: Mapping[str, str]) -> bool:
    """Returns whether the GPUs that a task sees have been chosen for it alone."""
    # With --tres-per-task=gres/gpu:1, too. The variable also lists cores.
    if any(environ.get(name, "none") not in ("", "none") for name in BOUND) or "gpu" in environ.get("SLURM_TRES_PER_TASK", ""):
        return True
    if installed.variable not in environ and "CUDA_VISIBLE_DEVICES" not in environ:
        return False
    if not any(name in environ for name in LOCAL_RANKS):
        return True  # The user has set it for this task.
    too_few = len(gpus) < computing or 0 < task.gpus == len(gpus) < task.gpus * computing
    return too_few and len(gpus) < len(installed.gpus)
