"""Chooses the `tf.distribute` strategy of a cluster description, and states the reason.

`RULES` is the whole decision: the first rule that fits applies. A strategy that the user names overrides the rules if the
cluster can run it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tfdist.cluster import Cluster
from tfdist.errors import nearest
from tfdist.synchronization import COMPRESSIONS, SERVER_COMPRESSIONS

STRATEGIES = ("mirrored", "multi_worker_mirrored", "parameter_server", "hogwild")
"""The names that `--strategy` takes. (One task with one device uses TensorFlow's default strategy, which has no name.)"""

SERVED = ("parameter_server", "hogwild")
"""Strategies with a chief that coordinates. Workers and ps only serve; only the chief runs the training program."""


@dataclass(frozen=True)
class Rule:
    """One line of the table.

    Attributes:
        description: the condition, in words.
        known_as: what the literature calls this way of training.
        strategy: the strategy that it selects.
        fits: returns whether the rule applies to a cluster.
    """

    description: str
    known_as: str
    strategy: str
    fits: Callable[[Cluster], bool]


def _devices(cluster: Cluster) -> int:
    return sum(task.slots for task in cluster.training_tasks)


def _is_one_group_of_several(cluster: Cluster) -> bool:
    return len(cluster.worker_groups) == 1 and len(cluster.worker_groups[0]) > 1


RULES: tuple[Rule, ...] = (
    Rule(
        "one task with at most one device",
        "single process",
        "default",
        lambda c: len(c.training_tasks) == 1 and _devices(c) == 1,
    ),
    Rule(
        "one task with several devices",
        "in-process AllReduce, data parallel",
        "mirrored",
        lambda c: len(c.training_tasks) == 1 and _devices(c) > 1,
    ),
    Rule(
        "several workers and no ps",
        "AllReduce",
        "multi_worker_mirrored",
        lambda c: not c.job("ps"),
    ),
    Rule(
        "several server groups",
        "Distributed Hogwild",
        "hogwild",
        lambda c: len(c.server_groups) > 1,
    ),
    Rule(
        "ps and one worker group of several workers, which step together",
        "Sandblaster",
        "parameter_server",
        _is_one_group_of_several,
    ),
    Rule(
        "ps with one server group, and worker groups that run asynchronously",
        "Downpour",
        "parameter_server",
        lambda c: True,
    ),
)


@dataclass(frozen=True)
class Choice:
    """A strategy and the rule that chose it.

    Attributes:
        strategy: `default` or one of `STRATEGIES`.
        rule: the reason, in words.
    """

    strategy: str
    rule: str


def choose(cluster: Cluster) -> Choice:
    """Returns the strategy for `cluster`: `cluster.strategy` if it is set, else that of the first rule that fits.

    Raises:
        ClusterError: if the strategy that the user forces is unknown or the cluster cannot run it, or if the options of
            synchronization or the partition do not fit the strategy or the cluster.
    """
    if cluster.strategy is not None:
        if fault := fault_of_strategy(cluster, cluster.strategy):
            raise cluster.source.error(fault, field="--strategy")
        choice = Choice(cluster.strategy, f"--strategy {cluster.strategy}")
    else:
        rule = next(rule for rule in RULES if rule.fits(cluster))
        choice = Choice(rule.strategy, f"{rule.description} ({rule.known_as})")
    if choice.strategy == "hogwild":
        server_groups = None if cluster.partial else len(cluster.server_groups)
        cluster.synchronization.check(cluster.sync_period, server_groups, cluster.source)
    for name, value in cluster.synchronization.non_default().items():
        if fault := refused(choice, name, value):
            raise cluster.source.error(fault, field=name)
    if cluster.partition:
        _check_partition(cluster, choice)
        slots = max(cluster.replica_slots, 2) if choice.strategy in SERVED else cluster.training_tasks[0].slots
        devices = cluster.partition.devices or slots
        choice = Choice(choice.strategy, f"{choice.rule}; each replica is sharded over {devices} devices")
    if choice.strategy == "parameter_server" and cluster.synchronization.compresses:
        return Choice(choice.strategy, f"{choice.rule}; parameters and gradients travel as bf16")
    return choice


def refused(choice: Choice, name: str, value: object) -> str | None:
    """Returns why a strategy refuses an option of synchronization, as the end of a sentence; None if it takes it.

    Args:
        choice: the strategy.
        name: a field of `Synchronization`.
        value: its value, not the default; one that is not valid is left to `synchronization.problem`.
    """
    if choice.strategy == "hogwild":
        return None
    if choice.strategy == "parameter_server" and name == "compression":
        if value in SERVER_COMPRESSIONS or value not in COMPRESSIONS:
            return None
        return (
            f"parameter_server sends {' or '.join(SERVER_COMPRESSIONS)}, because nothing makes up for the rounding; "
            f"{value} is for hogwild, which sends the rounding error with the next push"
        )
    return (
        f"it is an option of hogwild, and this cluster means {choice.strategy}: {choice.rule}; choose --strategy hogwild, "
        "describe several server groups, or leave it out"
    )


def prepared(cluster: Cluster) -> Cluster:
    """Returns the cluster as its strategy runs it: with a chief if the workers only serve (ParameterServer, Hogwild)."""
    if choose(cluster).strategy in SERVED and not cluster.partial:
        return cluster.with_chief()
    return cluster


def _check_partition(cluster: Cluster, choice: Choice) -> None:
    """Raises ClusterError if the strategy cannot shard variables, or the devices of a task do not make up whole replicas."""
    error = cluster.source.error
    if cluster.synchronization.fragments > 1:
        raise error("a partitioned model is synchronized as a whole; leave fragments or the partition out", field="fragments")
    if choice.strategy == "parameter_server" and cluster.synchronization.compresses:
        raise error("the shards of a partitioned model travel as float32; leave it or the partition out", field="compression")
    if choice.strategy in SERVED:
        _check_groups(cluster)
        return
    tasks = cluster.training_tasks
    for task in tasks:
        devices = cluster.partition.devices or task.slots
        is_within = task.slots % devices == 0
        is_spanning = devices % task.slots == 0 and len(tasks) % (devices // task.slots) == 0
        if devices < 2 or not (is_within or is_spanning):
            raise error(
                f"a replica has {max(devices, 2)} devices, and {task.name} has {task.slots} of the devices of {len(tasks)} "
                "tasks; give --partition_devices a number that divides the slots of each task, give --partition_tasks the "
                "number of tasks of a replica, or describe other slots (SINGA's nworkers_per_procs)",
                field="partition",
            )
        if not is_within and cluster.job("evaluator"):
            raise error(
                "the chief writes the evaluator's checkpoints alone, and a replica here has devices in several tasks; leave "
                "the evaluator out and use validation_data, or describe tasks with a whole replica each",
                field="partition",
            )


def _check_groups(cluster: Cluster) -> None:
    """Raises ClusterError if the workers of a group do not make up whole replicas. Their devices may be in several tasks."""
    devices = max(cluster.replica_slots, 2)
    for number, ranks in enumerate(cluster.worker_groups):
        if len(ranks) % devices:
            raise cluster.source.error(
                f"a replica has {devices} devices, all of one worker group, and worker group {number} has {len(ranks)} "
                "workers; give --partition_devices a number that divides the workers of each group, or describe other groups "
                "(SINGA's nworkers_per_group)",
                field="partition",
            )


def fault_of_strategy(cluster: Cluster, name: str) -> str | None:
    """Returns why a cluster cannot be trained with the strategy that a user names, as the end of a sentence; None if it can."""
    if name not in STRATEGIES:
        return f"{name!r} is not a strategy; choose one of {', '.join(STRATEGIES)}{nearest(name, STRATEGIES)}"
    if name == "parameter_server" and not cluster.job("ps") and not cluster.partial:
        return (
            f"{name} keeps the parameters on ps tasks, and this cluster has none ({cluster.describe()}); "
            "describe ps tasks or choose multi_worker_mirrored"
        )
    if name == "hogwild" and not cluster.job("worker") and not cluster.partial:
        return (
            f"hogwild trains on workers, and this cluster has none ({cluster.describe()}); describe workers or choose mirrored"
        )
    if name == "mirrored" and len(cluster.training_tasks) > 1:
        return (
            f"mirrored trains in one task, and this cluster has {len(cluster.training_tasks)} ({cluster.describe()}); "
            "choose multi_worker_mirrored or describe one task"
        )
    return None
