"""The cluster that this process belongs to: the program's description, merged with the environment of the process.

The description says which tasks exist. The environment says which of them this process is and, where the description leaves
hosts and ports open, where the tasks run. `resolve_cluster` merges both for `tfdist.strategy`; `current_cluster` returns the
result to `tfdist.rank` and the other functions of `ranks.py`.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable

from tfdist.choice import prepared
from tfdist.cluster import Cluster, Groups, Task
from tfdist.dialects import description, environment, from_environment
from tfdist.dialects.registry import names_jobs
from tfdist.errors import ClusterError, Source
from tfdist.rank_info import RankInfo

Rendezvous = Callable[[RankInfo], Cluster]
"""Returns the cluster of a job whose processes know their ranks but not each other's addresses."""

MEASURED = "TFDIST_MEASURE"
"""Set for the tasks that `tfdist plan` starts to measure a program in small clusters (launch/plan/probe.py)."""

_strategy_clusters: list[Cluster] = []  # At most one: the cluster of `tfdist.strategy` in this process.


def resolve_cluster(cfg: object, rendezvous: Rendezvous) -> Cluster:
    """Returns the cluster that `cfg` and the environment describe together, with the task of this process.

    `rendezvous` is called for ranks without addresses.

    The task is None in a plain program: no launcher started this process. Without any description the cluster is one chief.

    Raises:
        ClusterError: for a bad description, or one that contradicts the environment.
    """
    launched = environment.find()
    described = from_environment() if cfg is None else description(cfg)
    if described is None:
        return Cluster((Task("chief", 0),), source=Source("python", "no description"))
    if isinstance(described, RankInfo):
        if not _has_addresses(launched):
            return rendezvous(_with_launched_rank(described, launched))
        described = dataclasses.replace(described.outline(), task=None)  # Nobody has to meet.
    if launched is None:
        return described
    if described == launched:  # Equality ignores the task. A description is the same for all, whatever task it names.
        return dataclasses.replace(described, task=launched.task or described.task)
    if isinstance(launched, RankInfo):
        has_open_hosts = any(task.host is None for task in described.tasks)
        launched = rendezvous(launched) if has_open_hosts and len(described.tasks) > 1 else launched.outline()
    if launched.task is None:
        return described
    if launched.partial:
        return dataclasses.replace(launched, job_dir=launched.job_dir or described.job_dir)
    if names_jobs(launched.source.dialect):
        return _with_tf_config(described, launched)
    return _with_launched_processes(described, launched)


def is_measured() -> bool:
    """Returns whether `tfdist plan` measures the program: what it asks for itself does not count then."""
    return bool(os.environ.get(MEASURED))


def current_cluster(rendezvous: Rendezvous = RankInfo.outline) -> Cluster:
    """Returns the cluster given to `tfdist.strategy` in this process, else that of the environment, else a single task.

    The hosts of ranks without addresses stay open unless a `rendezvous` is given.
    """
    return _strategy_clusters[0] if _strategy_clusters else resolve_cluster(None, rendezvous)


def current_rank_info() -> RankInfo | None:
    """Returns the rank info of the environment; None after `tfdist.strategy`, or where the environment gives addresses."""
    described = None if _strategy_clusters else from_environment()
    return _with_launched_rank(described, environment.find()) if isinstance(described, RankInfo) else None


def set_current_cluster(cluster: Cluster) -> None:
    """Makes `cluster` the current cluster of this process."""
    _strategy_clusters[:] = [cluster]


def _has_addresses(launched: Cluster | RankInfo | None) -> bool:
    """Returns whether this is TF_CONFIG with the addresses of several tasks, one of which is this process."""
    if not isinstance(launched, Cluster) or launched.task is None or launched.partial:
        return False
    return names_jobs(launched.source.dialect) and len(launched.training_tasks) > 1


def _with_launched_rank(described: RankInfo, launched: Cluster | RankInfo | None) -> RankInfo:
    """Returns `described` with the rank that the launcher gives this process: a command line is the same in all processes."""
    outline = launched.outline() if isinstance(launched, RankInfo) else launched
    if outline is None or outline.task is None or outline.partial or outline.job("ps") or len(outline.training_tasks) == 1:
        return described
    if len(outline.training_tasks) != described.size:
        raise _contradiction(described.source, f"{described.size} ranks", outline)
    rank = [(task.job, task.index) for task in outline.training_tasks].index(outline.task)
    if isinstance(launched, RankInfo):
        return dataclasses.replace(described, rank=rank, local_rank=launched.local_rank, local_size=launched.local_size)
    hosts = [task.host for task in outline.training_tasks]
    here = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    return dataclasses.replace(described, rank=rank, local_rank=here.index(rank), local_size=len(here))


def _with_tf_config(described: Cluster, launched: Cluster) -> Cluster:
    """Returns `described` with the addresses and the task of TF_CONFIG, which names jobs itself."""
    asked = dataclasses.replace(described, strategy=launched.strategy or described.strategy)  # Hogwild adds a chief.
    jobs, begin = _jobs(launched), _jobs(launched)
    if launched.min_workers is not None:  # The others may join later.
        begin["worker"] = launched.min_workers
    if _jobs(described) not in (jobs, begin) and _jobs(prepared(asked)) not in (jobs, begin):
        raise _contradiction(described.source, described.describe(), launched)
    is_itself = described.source == launched.source  # TF_CONFIG, changed by flags.
    if not is_itself:
        described = dataclasses.replace(
            described,
            sync_period=launched.sync_period if "sync_period" in launched.says else described.sync_period,
            synchronization=dataclasses.replace(described.synchronization, **launched.given_options),
            says=described.says | launched.says,
        )
    # The slots of a description count where TF_CONFIG says nothing of them.
    known = {task.name: task for task in described.tasks}
    tasks = tuple(
        dataclasses.replace(task, slots=known[task.name].slots, gpus=known[task.name].gpus)
        if task.name in known and (is_itself or (task.slots, task.gpus) == (1, 0))
        else task
        for task in launched.tasks
    )
    return dataclasses.replace(
        described,
        tasks=tasks,
        worker_groups=_groups("worker", tasks, described, launched, is_itself),
        server_groups=_groups("ps", tasks, described, launched, is_itself),
        separate_servers=described.separate_servers and launched.separate_servers,
        share_memory=described.share_memory and launched.share_memory,
        task=launched.task,
        strategy=launched.strategy or described.strategy,
        partition=launched.partition or described.partition,
        protocol=launched.protocol,
        min_workers=launched.min_workers or described.min_workers,
        job_dir=(described.job_dir if is_itself else None) or launched.job_dir or described.job_dir,
    )


def _jobs(cluster: Cluster) -> Counter[str]:
    return Counter(task.job for task in cluster.training_tasks)


def _groups(job: str, tasks: tuple[Task, ...], described: Cluster, launched: Cluster, is_itself: bool) -> Groups:
    """Returns the groups of the workers or ps in `tasks`: those of the description, or where it says nothing, of TF_CONFIG.

    They are empty, which means the usual ones, where neither has others.

    Raises:
        ClusterError: if the description puts the slots of its tasks into groups, and TF_CONFIG alone says how many there are.
    """
    own, given, slots = _unusual(job, described), _unusual(job, launched), [task.slots for task in tasks if task.job == job]
    if [task.slots for task in launched.job(job)] != slots:
        given = ()
    says_groups = any(_unusual(each, described) for each in ("worker", "ps"))
    if [task.slots for task in described.job(job)] == slots and (says_groups or is_itself or not given):
        return own
    if own and not given:
        raise described.source.error(
            f"this puts the slots of its {job} tasks into groups, and {launched.source.name} gives them others; "
            "describe the groups with these"
        )
    return given


def _unusual(job: str, cluster: Cluster) -> Groups:
    """Returns the groups of the workers or ps of a cluster; empty if they are those that a description without groups has."""
    if job == "worker":
        return () if cluster.worker_groups == cluster.default_worker_groups else cluster.worker_groups
    return () if cluster.server_groups == cluster.default_server_groups else cluster.server_groups


def _with_launched_processes(described: Cluster, launched: Cluster) -> Cluster:
    """Returns `described` with its tasks assigned to the processes of a launcher that knows ranks but no jobs.

    The processes become the chief, the workers, the ps and the evaluators, in this order. Open hosts and ports are those of the
    process.
    """
    if len(launched.tasks) == 1:
        return described  # A process on its own, in an interactive shell for instance, shares the tasks with no other.
    assigned = next((c for c in (described, prepared(described)) if len(c.tasks) == len(launched.tasks)), None)
    if assigned is None:
        raise _contradiction(described.source, described.describe(), launched)
    tasks, own_task = [], None
    for task, process in zip(assigned.tasks, launched.tasks, strict=True):
        if task.host is None:
            task = dataclasses.replace(task, host=process.host, port=process.port)
        elif task.job == "chief" and not described.job("chief"):  # It was put beside worker 0, but runs in the first process.
            task = dataclasses.replace(task, host=process.host or task.host)
        tasks.append(task)
        if (process.job, process.index) == launched.task:
            own_task = (task.job, task.index)
    return dataclasses.replace(assigned, tasks=tuple(tasks), task=own_task)


def _contradiction(source: Source, described: str, launched: Cluster) -> ClusterError:
    if environment.is_started(os.environ):
        return source.error(
            f"this asks for {described}, but the launcher started {launched.describe()}; leave the description out of the "
            "program (tfdist.strategy()), or give the launcher the same one"
        )
    return source.error(
        f"this asks for {described}, but {launched.source.name} describes {launched.describe()}; "
        f"run the program without {launched.source.name}, or describe the same cluster"
    )
