"""What a dialect cannot express: the errors, worded alike in every dialect."""

import dataclasses
from collections.abc import Iterable

from tfdist.cluster import Cluster
from tfdist.errors import ClusterError


def cannot(cluster: Cluster, dialect: str, what: str, instead: str = "tf_config") -> ClusterError:
    """Returns (does not raise) the error about a cluster for which `dialect` has no words."""
    return cluster.source.error(f"{dialect} has no words for {what}; translate to {instead} instead")


def check_whole(cluster: Cluster, dialect: str) -> None:
    """Raises ClusterError if tasks of the cluster are missing: in the view of one task, or between the evaluators' indices."""
    if cluster.partial:
        raise cannot(cluster, dialect, "a part of a cluster")
    evaluators = [task.index for task in cluster.job("evaluator")]
    if evaluators != list(range(len(evaluators))):
        raise cannot(cluster, dialect, "evaluators whose indices have holes")


def check_usual(cluster: Cluster, dialect: str, *, but: Iterable[str] = ("job_dir",), instead: str = "tf_config") -> None:
    """Raises ClusterError if a field of the cluster other than its tasks and `but` differs from the default."""
    check_whole(cluster, dialect)
    plain = Cluster(tasks=cluster.tasks)
    for entry in dataclasses.fields(Cluster):
        if entry.compare and entry.name not in but and getattr(plain, entry.name) != getattr(cluster, entry.name):
            raise cannot(cluster, dialect, f"{entry.name} other than the usual", instead)
