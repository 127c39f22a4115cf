"""The absl flags that describe a cluster, for `python -m tfdist.launch` and for a user's own `absl.app` program."""

import dataclasses
from typing import Any, get_args

from absl import flags

from tfdist.choice import STRATEGIES, choose, fault_of_strategy, refused
from tfdist.cluster import Cluster, Task
from tfdist.dialects import description, from_environment
from tfdist.dialects.registry import override_flags, says_sync_period
from tfdist.errors import Source
from tfdist.outer_options import OUTER_OPTIMIZERS
from tfdist.partition import Partition, devices_fault, parsed_layouts
from tfdist.rank_info import RankInfo
from tfdist.synchronization import COMPRESSIONS, DEFAULT_SYNC_PERIOD, TOPOLOGIES, WEIGHTS, Synchronization, problem

HOGWILD_FLAGS = {
    "sync_period": "Updates of a worker group between two synchronizations. Default: as the description says, else 16.",
    "outer": f"Outer optimizer, which changes the global parameters: {', '.join(OUTER_OPTIMIZERS)}. Default: nesterov.",
    "outer_learning_rate": "Learning rate of the outer optimizer. Default: by outer and inner optimizer, and number of groups.",
    "outer_momentum": "Momentum of outer nesterov and delayed_nesterov. Default: as for --outer_learning_rate; that of "
    "nesterov may grow while the learning rate falls.",
    "elastic_rate": "Part of the way that local replica and global parameters move toward each other with outer elastic. "
    "Default: 0.9 / groups.",
    "topology": f"Which parameters a group synchronizes with: {', '.join(TOPOLOGIES)}. Default: global.",
    "compression": f"How progress is sent: {', '.join(COMPRESSIONS)}. Default: by the speed of the network. "
    "parameter_server takes bf16.",
    "fragments": "Number of parts of the parameters that are synchronized in turn. Default: 1.",
    "adaptive": "Synchronize slower groups after fewer updates. Default: all after equally many.",
    "synchronization_weights": f"What gives a push its weight: {', '.join(WEIGHTS)}. Default: groups.",
    "delay": "Updates of a group between its push and its pull. Default: measured.",
    "quorum": "Groups that must have pushed before a round of outer nesterov can end without the others. Default: 1.",
    "grace": "Sync periods for which a group waits for others in a round of outer nesterov. Default: 4, or 1 beside a group "
    "that is twice as slow.",
    "longest_period": "The largest sync period to which a slow network may lengthen it. Default: it does not change.",
    "average_momentum": "Average the momentum of SGD, RMSprop, Lion or Muon, too, in outer nesterov. Default: it stays local.",
}
"""Hogwild's flags: `sync_period` and the fields of `Synchronization`. `synchronization_weights` is the field `weights`."""


DEFAULT_START_TIMEOUT = 300.0
DEFAULT_RENDEZVOUS_TIMEOUT = 300.0

PARTITION_FLAGS = {
    "partition": "Variables that are sharded over the devices of each task, and their axes: "
    "'dense.*/kernel=columns,embeddings=rows'. Patterns are regular expressions for the end of a path; an axis is columns, "
    "rows, none or a number.",
    "partition_devices": "Devices over which --partition shards. Default: all of a task, with ps of a worker group. "
    "A task with one slot gets as many.",
    "partition_tasks": "Tasks whose devices make up a replica, without ps. Default: 1. With more, --partition_devices is by "
    "default all of theirs.",
}
"""Flags of the partition."""


_DEFINERS = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string}


def define_flags(flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines --cluster, --tier, --strategy, --job_dir and the other flags that `tfdist.strategy(FLAGS)` reads.

    Call it at the top of a program, before `absl.app.run`. A second call does nothing.

    Args:
        flag_values: defines the flags there. Default: absl's own FLAGS.
    """
    if "cluster" in flag_values and "tier" in flag_values:
        return
    define: dict[str, Any] = {"flag_values": flag_values}
    flags.DEFINE_string(
        "cluster",
        None,
        "The cluster: a file (SINGA job.conf, CloudML config.yaml, TF_CONFIG, a Horovod hostfile, ...) or the command line of "
        "another launcher ('horovodrun -np 4 -H a:2,b:2').",
        **define,
    )
    flags.DEFINE_string("hostfile", None, "SINGA hostfile: one host per line, assigned to the processes in turn.", **define)
    for name, help_text in override_flags().items():
        flags.DEFINE_string(name, None, help_text + " Wins over the file.", **define)
    flags.DEFINE_bool("evaluator", False, "Add an evaluator task to the cluster.", **define)
    flags.DEFINE_string("strategy", None, f"Strategy to use instead of the one chosen: {', '.join(STRATEGIES)}.", **define)
    for name, help_text in HOGWILD_FLAGS.items():
        _hogwild_definer(name)(name, None, "Hogwild: " + help_text, **define)
    for name, help_text in PARTITION_FLAGS.items():
        (flags.DEFINE_string if name == "partition" else flags.DEFINE_integer)(name, None, help_text, **define)
    flags.DEFINE_string("job_dir", None, "Folder for the output of the job; the launcher passes it to the program.", **define)
    flags.DEFINE_float(
        "start_timeout",
        DEFAULT_START_TIMEOUT,
        "Seconds to wait for the tasks of the cluster to come up.",
        lower_bound=0.0,
        **define,
    )
    flags.DEFINE_float(
        "rendezvous_timeout",
        DEFAULT_RENDEZVOUS_TIMEOUT,
        "Seconds to wait for the other ranks if the description gives ranks but no addresses.",
        lower_bound=0.0,
        **define,
    )


def _hogwild_definer(name: str) -> Any:
    """Returns what defines a flag of the type of its field."""
    kind = {entry.name: entry.type for entry in dataclasses.fields(Synchronization)}.get(option_of(name), int)
    kinds = (kind, *get_args(kind))  # It may be None, too.
    return next(define for each, define in _DEFINERS.items() if each in kinds)


def is_flag_values(cfg: object) -> bool:
    """Returns whether `cfg` is absl's FLAGS (or another FlagValues)."""
    return isinstance(cfg, flags.FlagValues)


def describes(flag_values: flags.FlagValues) -> bool:
    """Returns whether the flags describe a cluster without the environment."""
    return flag_values.cluster is not None or any(getattr(flag_values, name) is not None for name in override_flags())


def cluster_from_flags(flag_values: flags.FlagValues) -> Cluster | RankInfo | None:
    """Returns the cluster that the flags describe, else that of the environment; None if neither describes one.

    `--strategy`, `--evaluator`, `--job_dir` and Hogwild's flags apply to both (to a RankInfo after its ranks have met). The
    sync period is `DEFAULT_SYNC_PERIOD` for `--strategy hogwild` with a description that neither means Hogwild nor gives a
    period.

    Raises:
        ClusterError: if the description or a flag is bad, or if Hogwild's flags are given for another strategy.
        AttributeError: if `define_flags` was not called.
    """
    if describes(flag_values):
        overrides = {name: getattr(flag_values, name) for name in override_flags()}
        cluster: Cluster | RankInfo | None = description(
            flag_values.cluster, hostfile=flag_values.hostfile, overrides=overrides
        )
    elif flag_values.hostfile is not None:
        raise Source("flags", "--hostfile").error(
            "it goes with --cluster, because hosts alone are no tasks; for workers on them give --cluster 'horovodrun -np 4 "
            "--hostfile FILE'"
        )
    else:
        cluster = from_environment()
    if cluster is None and (given := hogwild_flags(flag_values)):
        raise Source("flags", f"--{next(iter(given))}").error(
            "it is an option of hogwild, and no cluster is described; give --tier or --cluster"
        )
    if cluster is None and (name := next((name for name in PARTITION_FLAGS if flag_values[name].value is not None), None)):
        raise Source("flags", f"--{name}").error(
            "no cluster is described whose devices could share a model; give --tier or --cluster"
        )
    return with_flags(cluster, flag_values) if isinstance(cluster, Cluster) else cluster


def with_flags(cluster: Cluster, flag_values: flags.FlagValues) -> Cluster:
    """Returns the cluster changed by `--strategy`, `--evaluator`, `--job_dir`, the partition's and Hogwild's flags."""
    if flag_values.strategy is not None:
        if fault := fault_of_strategy(cluster, flag_values.strategy):
            raise Source("flags", "--strategy").error(fault)
        if flag_values.strategy == "hogwild" and not says_sync_period(cluster):
            cluster = dataclasses.replace(cluster, sync_period=DEFAULT_SYNC_PERIOD, says=cluster.says | {"sync_period"})
        cluster = dataclasses.replace(cluster, strategy=flag_values.strategy)
    cluster = _with_partition_flags(cluster, flag_values)
    cluster = _with_hogwild_flags(cluster, flag_values)
    if flag_values.job_dir is not None:
        cluster = dataclasses.replace(cluster, job_dir=flag_values.job_dir)
    if flag_values.evaluator and not cluster.job("evaluator"):
        cluster = dataclasses.replace(cluster, tasks=(*cluster.tasks, Task("evaluator", 0)))
    return cluster


def _with_partition_flags(cluster: Cluster, flag_values: flags.FlagValues) -> Cluster:
    """Returns the cluster with the partition of the flags. Tasks with one slot get their part of the slots of a replica."""
    text, devices, spanned = flag_values.partition, flag_values.partition_devices, flag_values.partition_tasks
    if text is None and devices is None and spanned is None:
        return cluster
    if fault := devices_fault(devices):
        raise Source("flags", "--partition_devices").error(fault)
    spanned = 1 if spanned is None else spanned
    if fault := _tasks_fault(cluster, spanned, devices):
        raise Source("flags", "--partition_tasks").error(fault)
    try:
        layouts = cluster.partition.layouts if text is None else parsed_layouts(text)
    except ValueError as error:
        raise Source("flags", "--partition").error(str(error)) from None
    if not layouts:
        raise Source("flags", "--partition_tasks" if devices is None else "--partition_devices").error(
            "it goes with --partition, which names the variables that are sharded"
        )
    if devices is None and spanned > 1:
        devices = spanned * cluster.training_tasks[0].slots
    devices = devices or cluster.partition.devices
    cluster = dataclasses.replace(cluster, partition=Partition(layouts, devices))
    # With ps, and under hogwild, the chief only coordinates.
    jobs = ("worker",) if cluster.job("ps") or cluster.strategy == "hogwild" else ("chief", "worker")
    tasks = tuple(
        dataclasses.replace(task, slots=devices // spanned) if task.job in jobs and task.slots == 1 and devices else task
        for task in cluster.tasks
    )
    if tasks == cluster.tasks or cluster.worker_groups != cluster.default_worker_groups:
        return cluster  # `choose` refuses slots that do not suffice.
    return dataclasses.replace(cluster, tasks=tasks, worker_groups=())


def _tasks_fault(cluster: Cluster, spanned: int, devices: int | None) -> str | None:
    """Returns why a number of tasks of a replica is not right, as the end of a sentence; None if it is."""
    if spanned == 1:
        return None
    if cluster.job("ps") or cluster.strategy == "hogwild":
        return (
            "with ps and under hogwild the devices of a replica are those of a worker group; describe groups of several tasks"
        )
    count = len(cluster.training_tasks)
    if spanned < 1 or count % spanned:
        return f"{spanned} is not right; expected a number that divides the {count} tasks that train"
    slots = {task.slots for task in cluster.training_tasks}
    if devices is not None and (devices % spanned or slots - {1, devices // spanned}):
        return (
            f"a replica of {devices} devices cannot have those of {spanned} tasks, which have {min(slots)} slots each; give "
            "--partition_devices a multiple, or leave it out"
        )
    return None


def hogwild_flags(flag_values: flags.FlagValues) -> dict[str, Any]:
    """Returns the values of Hogwild's flags that are set, by flag."""
    return {name: flag_values[name].value for name in HOGWILD_FLAGS if flag_values[name].value is not None}


def option_of(flag: str) -> str:
    """Returns the field of `Synchronization` that a flag sets."""
    return "weights" if flag == "synchronization_weights" else flag


def _with_hogwild_flags(cluster: Cluster, flag_values: flags.FlagValues) -> Cluster:
    values = hogwild_flags(flag_values)
    if not values:
        return cluster
    choice = choose(dataclasses.replace(cluster, synchronization=Synchronization()))
    for flag, value in values.items():
        if fault := refused(choice, flag, value):
            raise Source("flags", f"--{flag}").error(fault)
    says = cluster.says | set(map(option_of, values))
    period = values.pop("sync_period", cluster.sync_period)
    if not 1 <= period < 2**31:
        raise Source("flags", "--sync_period").error(f"{period} is not right; expected a whole number from 1")
    options = {option_of(flag): value for flag, value in values.items()}
    for flag, name in zip(values, options, strict=True):
        if fault := problem(name, options[name]):
            raise Source("flags", f"--{flag}").error(fault)
    synchronization = dataclasses.replace(cluster.synchronization, **options)
    return dataclasses.replace(cluster, sync_period=period, synchronization=synchronization, says=says)
