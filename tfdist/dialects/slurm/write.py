"""Writes a batch script of Slurm."""

import json
import shlex
from typing import Any

from tfdist.cluster import EXTENSION, JOBS, Cluster
from tfdist.dialects.writing.unsupported import check_whole


def write(cluster: Cluster) -> str:
    """Returns a batch script that starts every task with srun: `sbatch job.sh train.py`.

    It has no hosts and ports: Slurm chooses the hosts, and `environment` the ports. Slurm gives every task of a step the same
    number of GPUs, so the script requests the largest number of any task.

    Raises:
        ClusterError: for the view of one task, and for evaluators whose indices have holes.
    """
    check_whole(cluster, "Slurm")
    first = cluster.tasks[0]
    extension = cluster.tf_config(first.job, first.index).get(EXTENSION, {})
    extension.pop("evaluators", None)
    config: dict[str, Any] = {"cluster": {job: len(cluster.job(job)) for job in JOBS if cluster.job(job)}}
    if cluster.protocol != "grpc":
        config["rpc_layer"] = cluster.protocol
    if extension:
        config[EXTENSION] = extension
    gpus = max(task.gpus for task in cluster.tasks)
    lines = [
        "#!/bin/bash",
        "#SBATCH --job-name=tfdist",
        f"#SBATCH --ntasks={len(cluster.tasks)}",
        *([f"#SBATCH --gpus-per-task={gpus}"] if gpus else []),
        "# The jobs of the ranks, in this order.",
        f"export TFDIST_CLUSTER={shlex.quote(json.dumps(config))}",
        "# sbatch job.sh train.py --epochs 5; tfdist.strategy() in the program reads the environment of its task.",
        f'srun --ntasks={len(cluster.tasks)} --kill-on-bad-exit=1 python "${{@:-train.py}}"',
    ]
    return "\n".join(lines) + "\n"
