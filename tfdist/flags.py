"""The absl flags that describe a cluster: the same for `python -m tfdist.launch` and for a user's own `absl.app` program."""

import dataclasses
from typing import Any

from absl import flags

from tfdist.choice import STRATEGIES
from tfdist.cluster import Cluster, Task
from tfdist.dialects import description, from_environment
from tfdist.errors import Source
from tfdist.membership import Membership

CLOUDML_FLAGS = {
    "tier": "CloudML scale tier: BASIC, STANDARD_1, PREMIUM_1, BASIC_GPU, BASIC_TPU or CUSTOM.",
    "master_machine_type": "CloudML machine type of the chief (tier CUSTOM).",
    "worker_machine_type": "CloudML machine type of the workers (tier CUSTOM).",
    "parameter_server_machine_type": "CloudML machine type of the ps (tier CUSTOM).",
    "evaluator_machine_type": "CloudML machine type of the evaluators (tier CUSTOM).",
    "worker_count": "CloudML number of workers beside the chief (tier CUSTOM).",
    "parameter_server_count": "CloudML number of ps (tier CUSTOM).",
    "evaluator_count": "CloudML number of evaluators (tier CUSTOM).",
}


def define_flags(flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines --cluster, --tier, --strategy, --job_dir and the other flags that `tfdist.strategy(FLAGS)` reads.

    Call it once at the top of a program, before `absl.app.run`; calling it again does nothing.

    Args:
        flag_values: where to define them, absl's own by default.
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
    flags.DEFINE_string("hostfile", None, "SINGA hostfile: one host a line, dealt out to the processes in turn.", **define)
    for name, help_text in CLOUDML_FLAGS.items():
        flags.DEFINE_string(name, None, help_text + " Wins over the file.", **define)
    flags.DEFINE_bool("evaluator", False, "Add an evaluator task to the cluster, whatever describes it.", **define)
    flags.DEFINE_string("strategy", None, f"Strategy to use instead of the one chosen: {', '.join(STRATEGIES)}.", **define)
    flags.DEFINE_string("job_dir", None, "Folder for what the job writes; the launcher hands it on to the program.", **define)
    flags.DEFINE_float(
        "start_timeout",
        300.0,
        "Seconds to wait for the tasks of the cluster to come up.",
        lower_bound=0.0,
        **define,
    )
    flags.DEFINE_float(
        "rendezvous_timeout",
        300.0,
        "Seconds to wait for the other ranks to meet, where the description gives ranks but no addresses.",
        lower_bound=0.0,
        **define,
    )


def is_flag_values(cfg: object) -> bool:
    """Whether `cfg` is absl's FLAGS (or another FlagValues)."""
    return isinstance(cfg, flags.FlagValues)


def describes(flag_values: flags.FlagValues) -> bool:
    """Whether the flags describe a cluster by themselves, without the environment."""
    return flag_values.cluster is not None or any(getattr(flag_values, name) is not None for name in CLOUDML_FLAGS)


def cluster_from_flags(flag_values: flags.FlagValues) -> Cluster | Membership | None:
    """Reads the cluster that the flags describe, else that of the environment; None where there is neither.

    `--strategy`, `--evaluator` and `--job_dir` apply to whichever it is (to a Membership, once its ranks have met).

    Raises:
        ClusterError: when the description is bad.
        AttributeError: when `define_flags` was not called.
    """
    if describes(flag_values):
        overrides = {name: getattr(flag_values, name) for name in CLOUDML_FLAGS}
        cluster: Cluster | Membership | None = description(
            flag_values.cluster, hostfile=flag_values.hostfile, overrides=overrides
        )
    elif flag_values.hostfile is not None:
        raise Source("flags", "--hostfile").error("it goes with --cluster: a hostfile alone does not say what runs where")
    else:
        cluster = from_environment()
    return with_flags(cluster, flag_values) if isinstance(cluster, Cluster) else cluster


def with_flags(cluster: Cluster, flag_values: flags.FlagValues) -> Cluster:
    """The cluster with what `--strategy`, `--evaluator` and `--job_dir` say, whatever described it."""
    if flag_values.strategy is not None:
        cluster = dataclasses.replace(cluster, strategy=flag_values.strategy)
    if flag_values.job_dir is not None:
        cluster = dataclasses.replace(cluster, job_dir=flag_values.job_dir)
    if flag_values.evaluator and not cluster.job("evaluator"):
        cluster = dataclasses.replace(cluster, tasks=(*cluster.tasks, Task("evaluator", 0)))
    return cluster
