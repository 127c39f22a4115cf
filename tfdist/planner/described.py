"""Makes a cluster of an option, in which the user's own description keeps what the option leaves open."""

import dataclasses
from typing import Any

from tfdist.choice import SERVED, choose
from tfdist.cluster import Cluster, Task
from tfdist.dialects.registry import says_sync_period
from tfdist.errors import ClusterError, Source
from tfdist.planner.option import Option
from tfdist.planner.prices import Machines
from tfdist.synchronization import DEFAULT_SYNC_PERIOD, SERVER_COMPRESSIONS, Synchronization


def option_of(cluster: Cluster) -> Option | None:
    """Returns the option that a cluster describes; None if the model of the predictions does not know it.

    It knows no groups of several workers, no several server groups, no partition, and no hogwild without ps.

    Raises:
        ClusterError: if the cluster cannot be trained on.
    """
    strategy, workers, ps = choose(cluster).strategy, len(cluster.job("worker")), len(cluster.job("ps"))
    if (any(len(group) > 1 for group in cluster.worker_groups) and ps) or len(cluster.server_groups) > 1:
        return None
    if cluster.partition:
        return None
    if strategy == "hogwild" and not ps:
        return None
    if strategy == "default":
        return Option("default", 1)
    if strategy == "mirrored":
        return Option("mirrored", cluster.training_tasks[0].slots)
    has_chief = bool(cluster.job("chief"))
    if strategy == "multi_worker_mirrored":
        return Option(strategy, workers + has_chief)
    colocated = not cluster.separate_servers or _shares_hosts(cluster)
    if strategy == "parameter_server":
        return Option(strategy, workers, ps, colocated, compression=cluster.synchronization.compression, chief_apart=has_chief)
    options = cluster.synchronization
    kept = (options.delay, options.fragments, options.compression)
    return Option(strategy, workers, ps, colocated, cluster.sync_period, *kept, chief_apart=has_chief)


def option_with(cluster: Cluster, strategy: str | None, period: int | None, synchronization: Synchronization) -> Option | None:
    """Returns the option that a cluster describes together with the command line; None if it cannot be trained or predicted so.

    Raises:
        ClusterError: if the description alone cannot be trained on.
    """
    own = choose(cluster).strategy
    strategy = strategy or own
    options, compression = Synchronization(), synchronization.compression if synchronization.compresses else None
    if strategy == "hogwild":
        options = synchronization
        own_period = cluster.sync_period if says_sync_period(cluster) else DEFAULT_SYNC_PERIOD
        cluster = dataclasses.replace(cluster, sync_period=period or own_period)
    elif strategy == "parameter_server" and compression in SERVER_COMPRESSIONS:
        options = Synchronization(compression=compression)
    if strategy != own:
        cluster = dataclasses.replace(cluster, strategy=strategy)
    try:
        return option_of(dataclasses.replace(cluster, synchronization=options))
    except ClusterError:
        return None


def _shares_hosts(cluster: Cluster) -> bool:
    hosts = {task.host for task in cluster.job("worker")} - {None}
    return bool(hosts) and all(task.host in hosts for task in cluster.job("ps"))


def cluster_of(
    option: Option, base: Cluster | None, machines: Machines, synchronization: Synchronization, needs_chief: bool = False
) -> Cluster:
    """Returns the cluster of an option.

    Args:
        option: the option.
        base: the user's description, of which it keeps all that the option leaves open; or None.
        machines: machine types for tasks that `base` does not have. Without `base` the types stay open.
        synchronization: options of hogwild, of which those of the option win.
        needs_chief: whether the first worker is called chief where no ps serve, for languages that have no cluster without one.
    """
    has_chief = (base is not None and bool(base.job("chief"))) or option.chief_apart or (needs_chief and not option.ps)
    changed: dict[str, Any] = {"tasks": _tasks(option, base, machines, has_chief), "separate_servers": not option.colocated}
    if base is None:
        cluster = Cluster(**changed, source=Source("planner", "tfdist plan"))
    else:
        chosen: dict[str, Any] = {"strategy": None, "sync_period": 1, "synchronization": Synchronization()}
        groups: dict[str, Any] = {"worker_groups": (), "server_groups": (), "share_memory": True}  # No process has several.
        begin = _begins_with(option, base)
        cluster = dataclasses.replace(base, **changed, **chosen, **groups, min_workers=begin, task=None)
    if option.strategy == "hogwild":
        changes = {"delay": option.delay, "fragments": option.fragments, "compression": option.compression}
        options = dataclasses.replace(synchronization, **changes)  # type: ignore[arg-type]
        return dataclasses.replace(cluster, strategy="hogwild", sync_period=option.period, synchronization=options)
    if option.strategy == "parameter_server" and option.compression:
        cluster = dataclasses.replace(cluster, synchronization=Synchronization(compression=option.compression))
    if choose(cluster).strategy != option.strategy and option.strategy != "default":
        return dataclasses.replace(cluster, strategy=option.strategy)
    return cluster


def _tasks(option: Option, base: Cluster | None, machines: Machines, has_chief: bool) -> tuple[Task, ...]:
    """Returns the tasks of an option, with the evaluators of the user's description."""
    is_one_task = option.strategy in ("default", "mirrored")
    chiefs = int(has_chief or (is_one_task and base is not None and not base.job("worker")))
    trains = 0 if option.ps else chiefs  # Beside ps the chief only coordinates.
    workers = 1 - chiefs if is_one_task else option.workers - trains
    tasks = [_task("chief", index, base, machines) for index in range(chiefs)]
    tasks += [_task("worker", index, base, machines) for index in range(workers)]
    for index in range(option.ps):
        task = _task("ps", index, base, machines)
        host = tasks[chiefs + index].host if option.colocated else task.host
        tasks.append(dataclasses.replace(task, host=host, port=None if option.colocated else task.port))
    if base is not None:
        tasks += base.job("evaluator")
    if is_one_task:
        tasks[0] = dataclasses.replace(tasks[0], slots=option.workers, gpus=min(tasks[0].gpus, option.workers))
    return tuple(tasks)


def _begins_with(option: Option, base: Cluster) -> int | None:
    """Returns `min_workers` of the description, where the strategy lets workers join later."""
    if base.min_workers is None or option.strategy not in SERVED:
        return None
    return min(base.min_workers, option.workers)


def _task(job: str, index: int, base: Cluster | None, machines: Machines) -> Task:
    """Returns the task of the description, or one with the devices of its first, whose host is open."""
    if base is None:
        return Task(job, index)
    known = base.job(job)
    if index < len(known):
        return known[index]
    first = known[0] if known else Task(job, index)
    kind = getattr(machines, job) if any(task.machine_type for task in base.tasks) else None
    return dataclasses.replace(first, index=index, host=None, port=None, machine_type=first.machine_type or kind)


def without_strategy(cluster: Cluster) -> tuple[Cluster, str]:
    """Returns a cluster without what only flags can say, and those flags: for languages that have no words for a strategy.

    Nothing says of workers that they join later, neither words of such a language nor flags, so all of them begin at once.
    """
    flags = []
    if cluster.strategy is not None:
        flags.append(f"--strategy {cluster.strategy}")
    if cluster.strategy == "hogwild":
        flags.append(f"--sync_period {cluster.sync_period}")
    for name, value in cluster.synchronization.non_default().items():
        flag = "synchronization_weights" if name == "weights" else name
        flags.append(f"--{'' if value else 'no'}{flag}" if isinstance(value, bool) else f"--{flag} {value}")
    return dataclasses.replace(
        cluster, strategy=None, sync_period=1, synchronization=Synchronization(), min_workers=None
    ), " ".join(flags)
