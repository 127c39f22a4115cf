"""`tfdist.strategy`, the front door: from a description to the strategy of this process.

Every task of a cluster runs the same program and calls `strategy`, which takes these steps:

1. It resolves the cluster and the task of this process (`process_cluster.py`). Processes that know ranks but no addresses
   exchange them in a rendezvous.
2. It chooses the strategy (`choice.py`).
3. On a ps or worker that only serves, it runs a server until the chief has finished. On an evaluator, it returns a strategy
   that evaluates. On every other task it returns the strategy that trains. A plain program, without a launcher, is the chief,
   and starts the serving tasks on this machine.

This is the only file of `tfdist/` that imports `tfdist.strategies` and `tfdist.launch`, and only when it needs them.
"""

import dataclasses
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from tfdist.choice import Choice, choose, prepared
from tfdist.cluster import Cluster, Task
from tfdist.dialects import description
from tfdist.flags import DEFAULT_RENDEZVOUS_TIMEOUT, DEFAULT_START_TIMEOUT, cluster_from_flags, is_flag_values, with_flags
from tfdist.process_cluster import Rendezvous, is_measured, resolve_cluster, set_current_cluster
from tfdist.rank_info import RankInfo
from tfdist.synchronization import Synchronization

if TYPE_CHECKING:
    import tensorflow as tf

START_VARIABLE = "TFDIST_START_TIMEOUT"
"""The seconds of `tfdist run --start_timeout`, where they are more than usual: its tasks wait as long for each other."""
LONGEST_TIMEOUT = 1e8
"""Three years, in seconds. Timers of the system take no infinity, with which users say "never"."""

_log = logging.getLogger("tfdist")
_created: "list[tuple[Cluster, tf.distribute.Strategy]]" = []  # At most one: TensorFlow's runtime connects to one cluster.
_clusters_of_ranks: dict[RankInfo, Cluster] = {}


def strategy(
    cfg: Any = None,
    *,
    start_timeout: float | None = None,
    rendezvous_timeout: float | None = None,
    synchronization: Synchronization | None = None,
) -> "tf.distribute.Strategy":
    """Returns the `tf.distribute.Strategy` for the described cluster, on each task that runs the training program.

    On an `evaluator` it returns a strategy under which `fit` evaluates the chief's checkpoints, until the chief's `fit` has
    returned. On a `ps` or `worker` of a ParameterServer or Hogwild cluster it does not return: it serves until the chief has
    finished, then exits with 0, or with 75 when the chief failed or disappeared. Call it before any other use of TensorFlow.

    Args:
        cfg: a `Cluster`, anything that `tfdist.read` takes (a tier name, a path, text, a dict), or absl FLAGS after
            `tfdist.define_flags()`. None reads the environment: TF_CONFIG, or the variables of another launcher
            (docs/dialects/environment.md). Without these the program trains in this process alone. With both, `cfg` must
            describe as many tasks as the environment, which says which of them this process is.
        start_timeout: seconds to wait for the other tasks; default 300, or the flag `--start_timeout` of the program, or
            that of `tfdist run` if it is more.
        rendezvous_timeout: seconds to wait for the addresses of the other ranks, where only these ranks know them; default 300,
            or the flag `--rendezvous_timeout`.
        synchronization: Hogwild's options. They replace those of `cfg`; each option of flags and TF_CONFIG wins over them.

    Raises:
        ClusterError: for a bad description, one that contradicts the environment, or one that no strategy here can train.
        StartTimeoutError: when tasks of the cluster do not start in time; the message names them.
        RuntimeError: in a process that multiprocessing spawns and that imports the program, where there are other tasks.
        UnsupportedVersionError: if TensorFlow or Keras is too old, lacks a private name that tfdist builds on, or has another
            backend than TensorFlow.
    """
    start_timeout, rendezvous_timeout = _timeouts(cfg, start_timeout, rendezvous_timeout)
    is_child = _is_imported_by_a_child()
    meet: Rendezvous = RankInfo.outline if is_child else lambda rank_info: rendezvous(rank_info, rendezvous_timeout)
    cluster = _resolve(cfg, synchronization, meet)
    if is_child and len(cluster.training_tasks) > 1:
        raise RuntimeError(
            "tfdist.strategy() is called again in a process that multiprocessing has started, which imports the program: it "
            "would be the same task once more; call it under `if __name__ == '__main__':`"
        )
    if _created:
        return _same_strategy(cluster)
    set_current_cluster(cluster)

    from tfdist import strategies

    if cluster.task and cluster.task[0] == "evaluator":
        _created.append((cluster, strategies.create_evaluator(cluster, start_timeout)))
        return _created[0][1]
    choice = choose(cluster)
    _check(cluster, choice)
    if cluster.task and cluster.task[0] in strategies.serving_jobs(choice.strategy) and not _is_chief_too(cluster):
        _serve(cluster, cluster.find(*cluster.task), choice, start_timeout)
    return _create(cluster, choice, start_timeout)


def rendezvous(rank_info: RankInfo, timeout: float = DEFAULT_RENDEZVOUS_TIMEOUT) -> Cluster:
    """Returns the cluster of ranks without addresses, which they exchange in their store once per process, within `timeout`
    seconds.

    Raises:
        StartTimeoutError: when ranks are missing after `timeout` seconds; the message names them.
        ClusterError: when the ranks contradict each other, or have no store.
    """
    if rank_info not in _clusters_of_ranks:
        from tfdist.launch.rendezvous.meet import meet

        _clusters_of_ranks[rank_info] = meet(rank_info, timeout)
    return _clusters_of_ranks[rank_info]


def _timeouts(cfg: Any, start_timeout: float | None, rendezvous_timeout: float | None) -> tuple[float, float]:
    """Returns both timeouts of `strategy` in seconds: as given, else as the flags say, else their defaults."""
    if is_flag_values(cfg):
        if start_timeout is None and not cfg["start_timeout"].using_default_value:
            start_timeout = cfg.start_timeout
        rendezvous_timeout = cfg.rendezvous_timeout if rendezvous_timeout is None else rendezvous_timeout
    start_timeout = _launchers_start_timeout() if start_timeout is None else start_timeout
    rendezvous_timeout = DEFAULT_RENDEZVOUS_TIMEOUT if rendezvous_timeout is None else rendezvous_timeout
    return min(start_timeout, LONGEST_TIMEOUT), min(rendezvous_timeout, LONGEST_TIMEOUT)


def _launchers_start_timeout() -> float:
    """Returns how long tasks wait for each other where the program does not say it."""
    try:
        return max(DEFAULT_START_TIMEOUT, float(os.environ.get(START_VARIABLE, "")))
    except ValueError:  # Nothing, or no number.
        return DEFAULT_START_TIMEOUT


def _is_imported_by_a_child() -> bool:
    """Returns whether a process that multiprocessing, or joblib, has started imports the program, before it does its work."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and bool(getattr(process.current_process(), "_inheriting", False))


def _resolve(cfg: Any, synchronization: Synchronization | None, meet: Rendezvous) -> Cluster:
    """Returns the cluster of this process, with the options of the flags and of the program."""
    if not isinstance(synchronization, Synchronization | None):
        raise TypeError(f"synchronization is a tfdist.Synchronization(...), not a {type(synchronization).__name__}")
    if is_measured():
        cfg = None
    flag_values = cfg if is_flag_values(cfg) else None
    if flag_values is not None:
        cfg = cluster_from_flags(flag_values)
    elif cfg is not None and synchronization is not None:
        cfg = description(cfg)
        if isinstance(cfg, Cluster):
            cfg = dataclasses.replace(cfg, synchronization=synchronization)
    cluster = resolve_cluster(cfg, meet)
    if flag_values is not None and cfg is not None:
        cluster = with_flags(cluster, flag_values)
        if flag_values.job_dir is None:
            flag_values.job_dir = cluster.job_dir  # The program also sees the --job_dir that the launcher was given.
    if synchronization is not None:
        options = dataclasses.replace(synchronization, **cluster.given_options)
        cluster = dataclasses.replace(cluster, synchronization=options)
    return cluster


def _same_strategy(cluster: Cluster) -> "tf.distribute.Strategy":
    first, created = _created[0]
    if cluster == first:
        return created
    raise cluster.source.error(
        f"this process already trains on {first.describe()} ({first.source.name}), and a process belongs to one cluster; "
        "start another program for this one (in a notebook: restart the kernel)"
    )


def _check(cluster: Cluster, choice: Choice) -> None:
    """Logs warnings for a cluster that can be trained.

    Raises:
        ClusterError: for one that cannot.
        UnsupportedVersionError: if Keras has another backend than TensorFlow, and the strategy needs that.
    """
    from tfdist import strategies

    if reason := strategies.refusal(cluster, choice):
        raise cluster.source.error(reason)
    strategies.keras_backend.check(choice.strategy)
    note = strategies.tpu_note(cluster)
    for warning in (*([note] if note else []), *cluster.synchronization.warnings(len(cluster.worker_groups))):
        _log.warning("%s", warning)


def _serve(cluster: Cluster, task: Task, choice: Choice, start_timeout: float) -> NoReturn:
    """Serves as `task` until the chief has finished, and ends the process."""
    from tfdist.strategies.own_devices import take_for_serving
    from tfdist.strategies.runtime.server import serve

    take_for_serving(cluster, choice.strategy)
    serve(cluster.addressed(), task, start_timeout)


def _create(cluster: Cluster, choice: Choice, start_timeout: float) -> "tf.distribute.Strategy":
    """Creates the strategy on the chief, on a single task, or on one of several tasks that all train."""
    from tfdist import strategies

    serving_jobs = strategies.serving_jobs(choice.strategy)
    running = prepared(cluster)
    if serving_jobs:
        running = _with_local_servers(running, serving_jobs)
    if running.task is None and running.job("evaluator"):
        _log.warning("a plain program starts no evaluator; this one trains without (tfdist run starts it)")
    created = strategies.create(running.addressed(), choice, start_timeout)
    if cluster.task is not None and (serving_jobs or cluster.task[0] == "chief" or _is_chief_too(cluster)):
        strategies.write_for_evaluator(created, running)
    if serving_jobs or len(running.training_tasks) > 1:
        _created.append((cluster, created))
    return created


def _with_local_servers(cluster: Cluster, serving_jobs: tuple[str, ...]) -> Cluster:
    """Returns `cluster` with the addresses of the servers that this process starts: all, one or none."""
    if cluster.task is None:
        tasks = [task for task in cluster.tasks if task.job in serving_jobs]
    elif cluster.task[0] == "worker":
        _log.warning("the cluster has no chief; this process, %s:%d, is also the chief", *cluster.task)
        tasks = [cluster.find(*cluster.task)]
    else:
        return cluster

    from tfdist.launch.backends.local.local_servers import start_servers

    return start_servers(cluster, tasks)


def _is_chief_too(cluster: Cluster) -> bool:
    """Returns whether this process is worker 0 of a cluster without a chief."""
    return cluster.task == ("worker", 0) and not cluster.job("chief") and not cluster.partial
