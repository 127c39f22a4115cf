"""What this process is in the cluster, and what `tfdist.strategy` therefore does in it.

The same program runs on every task. On a task that trains and on an evaluator `strategy` returns; on a task that only serves
it runs a server until the chief has finished and ends the process. In a plain program, without launcher and TF_CONFIG, it
starts the serving tasks on this machine and the process is the chief.
"""

import dataclasses
import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from tfdist.choice import choose, prepared
from tfdist.cluster import Cluster, Task
from tfdist.dialects import from_environment, read
from tfdist.errors import Source
from tfdist.flags import cluster_from_flags, is_flag_values
from tfdist.synchronisation import Synchronisation

if TYPE_CHECKING:
    import tensorflow as tf

DEFAULT_START_TIMEOUT = 300.0

_log = logging.getLogger("tfdist")
_active: "list[tuple[Cluster, tf.distribute.Strategy]]" = []
_described: list[Cluster] = []


def strategy(
    cfg: Any = None, *, start_timeout: float | None = None, synchronisation: Synchronisation | None = None
) -> "tf.distribute.Strategy":
    """Returns the `tf.distribute.Strategy` that the description means, on the task that runs the training program.

    On an `evaluator` it returns one under which `fit` evaluates the chief's checkpoints instead of training, until the chief's
    `fit` has returned. On a `ps` or `worker` of a ParameterServer cluster it does not return: it serves until the chief has
    finished and exits with 0 (with 75 when the chief failed or is gone). Call it before anything else uses TensorFlow.

    Args:
        cfg: a `Cluster`, anything that `tfdist.read` takes (a tier name, a path, text, a dict), or absl FLAGS after
            `tfdist.define_flags()`. None reads TF_CONFIG; without TF_CONFIG too, the program trains in this one process.
            Where TF_CONFIG is set it says which task this process is, and a `cfg` must describe the same cluster.
        start_timeout: seconds to wait for the other tasks; default 300, or the flag `--start_timeout`.
        synchronisation: Hogwild's options, in place of those that `cfg` describes; those of flags and TF_CONFIG go before.

    Raises:
        ClusterError: for a bad description, one that contradicts TF_CONFIG, or one that cannot be trained with yet.
        StartTimeoutError: when tasks of the cluster did not come up; the message names them.
    """
    if is_flag_values(cfg):
        start_timeout = cfg.start_timeout if start_timeout is None else start_timeout
        flag_values, cfg = cfg, cluster_from_flags(cfg)
        if cfg is not None and flag_values.job_dir is None:
            flag_values.job_dir = cfg.job_dir  # Given to the launcher, it is the program's too.
    elif cfg is not None and synchronisation is not None:
        cfg = dataclasses.replace(read(cfg), synchronisation=synchronisation)
    start_timeout = DEFAULT_START_TIMEOUT if start_timeout is None else start_timeout
    cluster = _this_cluster(cfg)
    if synchronisation is not None and not cluster.synchronisation.given():
        cluster = dataclasses.replace(cluster, synchronisation=synchronisation)
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
    for warning in cluster.synchronisation.warnings(cluster):
        _log.warning("%s", warning)
    serving = strategies.serving_jobs(choice.strategy)
    if cluster.task and cluster.task[0] in serving and not _is_chief_too(cluster):
        from tfdist.strategies.serve import serve

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


def _this_cluster(cfg: Any) -> Cluster:
    """The cluster that `cfg` and TF_CONFIG describe together, with this process' task where TF_CONFIG says which it is."""
    here = from_environment()
    if cfg is None:
        return here or Cluster((Task("chief", 0),), source=Source("python", "no description"))
    described = read(cfg)
    if here is None or here.task is None or here.partial:
        if here is None or here.task is None:
            return described
        return dataclasses.replace(here, job_dir=here.job_dir or described.job_dir)
    theirs, ours = (Counter(task.job for task in c.training_tasks) for c in (prepared(described), here))
    if theirs != ours and Counter(task.job for task in described.training_tasks) != ours:
        raise described.source.error(
            f"the program asks for {described.describe()}, but TF_CONFIG describes {here.describe()}; "
            "run the program without TF_CONFIG, or describe the same cluster"
        )
    if described.task is None:  # It is not TF_CONFIG itself, with flags on top.
        described = dataclasses.replace(
            described,
            sync_period=described.sync_period if here.sync_period == 1 else here.sync_period,
            synchronisation=here.synchronisation if here.synchronisation.given() else described.synchronisation,
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


def this_cluster() -> Cluster:
    """The cluster that was given to `strategy` in this process, else that of TF_CONFIG, else one task."""
    return _described[0] if _described else _this_cluster(None)


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
    from tfdist.launch import embedded

    return embedded.start_servers(cluster, tasks)


def tf_config_json(cluster: Cluster, task: Task) -> str:
    """TF_CONFIG of `task` as the text that the environment variable holds."""
    return json.dumps(cluster.tf_config(task.job, task.index))
