"""Writes TF_CONFIG."""

import json

from tfdist.cluster import Cluster

MAX_WRITTEN = 256 << 20
"""Most bytes that `write` returns for all tasks."""

_PLACE = {"type": None}


def write(cluster: Cluster) -> str:
    """Returns a JSON object: task name -> TF_CONFIG of the task, one task per line.

    Raises:
        ClusterError: if the text would be larger than `MAX_WRITTEN`.
    """
    cluster = cluster.addressed()
    first = cluster.tasks[0]
    head = json.dumps(cluster.tf_config(first.job, first.index) | {"task": _PLACE})
    if len(head) * len(cluster.tasks) > MAX_WRITTEN:
        raise cluster.source.error(
            f"TF_CONFIG of each of the {len(cluster.tasks)} tasks names them all, in {len(head)} bytes; print that of one with "
            "--task, or the addresses once with --to cluster_spec"
        )
    # Only `task` differs between the tasks; the rest is long.
    before, _, after = head.partition(json.dumps(_PLACE))
    parts = ((task.name, json.dumps({"type": task.job, "index": task.index})) for task in cluster.tasks)
    return "{" + ",\n ".join(f"{json.dumps(name)}: {before}{task}{after}" for name, task in parts) + "}\n"


def write_task(cluster: Cluster, job: str, index: int) -> str:
    """Returns TF_CONFIG of the task `job:index`. Raises ClusterError if there is no such task."""
    return json.dumps(cluster.addressed().tf_config(job, index))
