"""What this process is in the cluster, and what `tfdist.strategy` therefore does in it.

The same program runs on every task. On a task that trains and on an evaluator `strategy` returns; on a task that only serves
it runs a server until the chief has finished and ends the process. In a plain program, without any launcher, it
starts the serving tasks on this machine and the process is the chief.

A description in the program and an environment go together like this: the description says which tasks there are, the
environment which of them this process is, and, where the description leaves it open, where they are.
"""

import dataclasses
import json
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfdist.choice import choose, prepared
from tfdist.cluster import Cluster, Task
from tfdist.dialects import description, environment, from_environment, tf_config
from tfdist.errors import ClusterError, Source
from tfdist.flags import cluster_from_flags, is_flag_values, with_flags
from tfdist.rank_info import RankInfo
from tfdist.synchronization import Synchronization

if TYPE_CHECKING:
    import tensorflow as tf

DEFAULT_START_TIMEOUT = 300.0
DEFAULT_RENDEZVOUS_TIMEOUT = 300.0

_log = logging.getLogger("tfdist")
_active: "list[tuple[Cluster, tf.distribute.Strategy]]" = []
_described: list[Cluster] = []
_rendezvous_done: dict[RankInfo, Cluster] = {}


def strategy(
    cfg: Any = None,
    *,
    start_timeout: float | None = None,
    rendezvous_timeout: float | None = None,
    synchronization: Synchronization | None = None,
) -> "tf.distribute.Strategy":
    """Returns the `tf.distribute.Strategy` that the description means, on the task that runs the training program.

    On an `evaluator` it returns one under which `fit` evaluates the chief's checkpoints instead of training, until the chief's
    `fit` has returned. On a `ps` or `worker` of a ParameterServer cluster it does not return: it serves until the chief has
    finished and exits with 0 (with 75 when the chief failed or is gone). Call it before anything else uses TensorFlow.

    Args:
        cfg: a `Cluster`, anything that `tfdist.read` takes (a tier name, a path, text, a dict), or absl FLAGS after
            `tfdist.define_flags()`. None takes the environment: TF_CONFIG, or the variables of another launcher
            (docs/dialects/environment.md); where there are none too, the program trains in this one process. Where there are,
            they say which task this process is, and a `cfg` must describe as many tasks.
        start_timeout: seconds to wait for the other tasks; default 300, or the flag `--start_timeout`.
        rendezvous_timeout: seconds to wait for the other ranks to say where they are, where only they know it; default 300, or
            the flag `--rendezvous_timeout`.
        synchronization: Hogwild's options, in place of those that `cfg` describes; those of flags and TF_CONFIG go before.

    Raises:
        ClusterError: for a bad description, one that contradicts the environment, or one that cannot be trained with yet.
        StartTimeoutError: when tasks of the cluster did not come up; the message names them.
    """
    flag_values = cfg if is_flag_values(cfg) else None
    if flag_values is not None:
        start_timeout = flag_values.start_timeout if start_timeout is None else start_timeout
        rendezvous_timeout = flag_values.rendezvous_timeout if rendezvous_timeout is None else rendezvous_timeout
        cfg = cluster_from_flags(flag_values)
    elif cfg is not None and synchronization is not None:
        cfg = description(cfg)
        cfg = dataclasses.replace(cfg, synchronization=synchronization) if isinstance(cfg, Cluster) else cfg
    start_timeout = DEFAULT_START_TIMEOUT if start_timeout is None else start_timeout
    limit = DEFAULT_RENDEZVOUS_TIMEOUT if rendezvous_timeout is None else rendezvous_timeout
    cluster = _this_cluster(cfg, lambda rank_info: _met(rank_info, limit))
    if flag_values is not None and cfg is not None:
        cluster = with_flags(cluster, flag_values)
        if flag_values.job_dir is None:
            flag_values.job_dir = cluster.job_dir  # Given to the launcher, it is the program's too.
    if synchronization is not None and not cluster.synchronization.non_default():
        cluster = dataclasses.replace(cluster, synchronization=synchronization)
    if _active:
        return _again(cluster)
    _described[:] = [cluster]

    from tfdist import strategies

    if cluster.task and cluster.task[0] == "evaluator":
        _active.append((cluster, strategies.create_evaluator(cluster, start_timeout)))
        return _active[0][1]
    choice = choose(cluster)

    reason = strategies.refusal(cluster, choice)
    if reason:
        raise cluster.source.error(reason)
    if note := strategies.tpu_note(cluster):
        _log.warning("%s", note)
    for warning in cluster.synchronization.warnings(len(cluster.worker_groups)):
        _log.warning("%s", warning)
    serving = strategies.serving_jobs(choice.strategy)
    if cluster.task and cluster.task[0] in serving and not _is_chief_too(cluster):
        from tfdist.strategies.runtime.server import serve

        serve(cluster.addressed(), cluster.find(*cluster.task), start_timeout)
    described = cluster
    cluster = prepared(cluster)
    if serving and cluster.task is None:
        cluster = _start_here(cluster, [task for task in cluster.tasks if task.job in serving])
    elif serving and cluster.task and cluster.task[0] == "worker":
        _log.warning("the cluster has no chief; this process, %s:%d, is the chief too", *cluster.task)
        cluster = _start_here(cluster, [cluster.find(*cluster.task)])
    if cluster.task is None and cluster.job("evaluator"):
        _log.warning("a plain program starts no evaluator; this one trains without (python -m tfdist.launch starts it)")
    created = strategies.create(cluster.addressed(), choice, start_timeout)
    if described.task is not None and (serving or described.task[0] == "chief" or _is_chief_too(described)):
        strategies.write_for_evaluator(created, cluster)
    if serving or len(cluster.training_tasks) > 1:  # TensorFlow's runtime is connected to one cluster.
        _active.append((described, created))
    return created


def _this_cluster(cfg: Any, meet: Callable[[RankInfo], Cluster]) -> Cluster:
    """The cluster that `cfg` and the environment describe together, with this process' task where one of them says it.

    `meet` makes a Cluster of ranks that have no addresses yet.
    """
    here = environment.find()
    described = from_environment() if cfg is None else description(cfg)
    if described is None:
        return Cluster((Task("chief", 0),), source=Source("python", "no description"))
    if isinstance(described, RankInfo):
        return meet(described if cfg is None else _with_rank_of(here, described))
    if here is None or described == here:
        return described
    if isinstance(here, RankInfo):
        is_open = any(task.host is None for task in described.tasks)
        here = meet(here) if is_open and len(described.tasks) > 1 else here.outline()
    if here.task is None:
        return described
    if here.partial:
        return dataclasses.replace(here, job_dir=here.job_dir or described.job_dir)
    return _merged(described, here) if here.source.dialect == tf_config.NAME else _placed(described, here)


def _with_rank_of(here: Cluster | RankInfo | None, described: RankInfo) -> RankInfo:
    """The membership with the rank that the environment gives this process: a command line is the same on all of them."""
    outline = here.outline() if isinstance(here, RankInfo) else here
    if outline is None or outline.task is None or outline.partial or outline.job("ps") or len(outline.training_tasks) == 1:
        return described
    if len(outline.training_tasks) != described.size:
        raise _contradiction(described.source, f"{described.size} ranks", outline)
    rank = [(task.job, task.index) for task in outline.training_tasks].index(outline.task)
    if isinstance(here, RankInfo):
        return dataclasses.replace(described, rank=rank, local_rank=here.local_rank, local_size=here.local_size)
    return dataclasses.replace(described, rank=rank)


def _merged(described: Cluster, here: Cluster) -> Cluster:
    """The description, with addresses and task of TF_CONFIG, which has jobs of its own."""
    theirs, ours = (Counter(task.job for task in c.training_tasks) for c in (prepared(described), here))
    if theirs != ours and Counter(task.job for task in described.training_tasks) != ours:
        raise _contradiction(described.source, described.describe(), here)
    if described.task is None:  # It is not TF_CONFIG itself, with flags on top.
        described = dataclasses.replace(
            described,
            sync_period=described.sync_period if here.sync_period == 1 else here.sync_period,
            synchronization=here.synchronization if here.synchronization.non_default() else described.synchronization,
        )
    slots = {task.name: (task.slots, task.gpus) for task in described.tasks}
    tasks = []
    for task in here.tasks:
        width, gpus = slots.get(task.name, (task.slots, task.gpus))
        tasks.append(dataclasses.replace(task, slots=width, gpus=gpus))
    return dataclasses.replace(
        described,
        tasks=tuple(tasks),
        task=here.task,
        strategy=here.strategy or described.strategy,
        protocol=here.protocol,
        job_dir=described.job_dir or here.job_dir,
    )


def _placed(described: Cluster, here: Cluster) -> Cluster:
    """The description, dealt out to the processes of a launcher that knows ranks, but no jobs: chief, workers, ps, evaluators.

    Hosts and ports that the description leaves open are those of the processes.
    """
    if len(here.tasks) == 1:
        return described  # One process alone, as in an interactive shell: there is nobody to share the tasks with.
    fitting = next((c for c in (described, prepared(described)) if len(c.tasks) == len(here.tasks)), None)
    if fitting is None:
        raise _contradiction(described.source, described.describe(), here)
    tasks, task = [], None
    for mine, place in zip(fitting.tasks, here.tasks, strict=True):
        tasks.append(mine if mine.host is not None else dataclasses.replace(mine, host=place.host, port=place.port))
        if (place.job, place.index) == here.task:
            task = (mine.job, mine.index)
    return dataclasses.replace(fitting, tasks=tuple(tasks), task=task)


def _contradiction(source: Source, asked: str, here: Cluster) -> ClusterError:
    return source.error(
        f"the program asks for {asked}, but {here.source.name} describes {here.describe()}; "
        f"run the program without {here.source.name}, or describe the same cluster"
    )


def _met(rank_info: RankInfo, timeout_seconds: float) -> Cluster:
    """The cluster of ranks that have met; they meet once in a process."""
    if rank_info not in _rendezvous_done:
        from tfdist.launch.rendezvous.meet import meet

        _rendezvous_done[rank_info] = meet(rank_info, timeout_seconds)
    return _rendezvous_done[rank_info]


def this_cluster(*, with_hosts: bool = False) -> Cluster:
    """The cluster that was given to `strategy` in this process, else that of the environment, else one task.

    Where the environment knows ranks but no hosts, the hosts are left open, or with `with_hosts` the ranks meet to find out.
    """
    if _described:
        return _described[0]
    if with_hosts:
        return _this_cluster(None, lambda rank_info: _met(rank_info, DEFAULT_RENDEZVOUS_TIMEOUT))
    return _this_cluster(None, RankInfo.outline)


def membership_here() -> RankInfo | None:
    """What the environment says of this process' rank, where it says no more than that and `strategy` was not called yet."""
    here = None if _described else from_environment()
    return here if isinstance(here, RankInfo) else None


def _is_chief_too(cluster: Cluster) -> bool:
    """Whether this is worker 0 of a cluster without chief."""
    return cluster.task == ("worker", 0) and not cluster.job("chief") and not cluster.partial


def _again(cluster: Cluster) -> "tf.distribute.Strategy":
    described, created = _active[0]
    if cluster == described:
        return created
    raise cluster.source.error(
        f"this process already trains on {described.describe()} ({described.source.name}); "
        "a process can belong to one cluster: start another program for this one"
    )


def _start_here(cluster: Cluster, tasks: list[Task]) -> Cluster:
    from tfdist.launch.backends.local import local_servers

    return local_servers.start_servers(cluster, tasks)


def tf_config_json(cluster: Cluster, task: Task) -> str:
    """TF_CONFIG of `task` as the text that the environment variable holds."""
    return json.dumps(cluster.tf_config(task.job, task.index))
