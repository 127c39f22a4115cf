"""What a dialect cannot express, by one rule for all of them.

What the training depends on (tasks, groups, synchronization, protocol, strategy) is never left out: the writer raises
ClusterError. What it does not depend on (the job's folder, hosts and ports that the system chooses itself) is left out with a
note: a comment in a manifest, or a line on standard error (`Writer.notes`).
"""

import dataclasses
import json
from collections.abc import Callable

from tfdist.cluster import Cluster
from tfdist.dialects.parsing.document import Document, shown
from tfdist.dialects.parsing.load import load
from tfdist.errors import ClusterError, Source


def cannot(cluster: Cluster, dialect: str, meaning: str, instead: str = "tf_config") -> ClusterError:
    """Returns (does not raise) the error about a cluster for which `dialect` has no words."""
    return cluster.source.error(f"{dialect} has no words for {meaning}; translate to {instead} instead")


def check_whole(cluster: Cluster, dialect: str) -> None:
    """Raises ClusterError if tasks of the cluster are missing: in the view of one task, or between the evaluators' indices."""
    if cluster.partial:
        raise cannot(cluster, dialect, "a part of a cluster")
    evaluators = [task.index for task in cluster.job("evaluator")]
    if evaluators != list(range(len(evaluators))):
        raise cannot(cluster, dialect, "evaluators whose indices have holes")


def difference(one: Cluster, other: Cluster) -> str | None:
    """Returns the first field that counts and in which two clusters differ, or None."""
    names = (entry.name for entry in dataclasses.fields(Cluster) if entry.compare)
    return next((name for name in names if getattr(one, name) != getattr(other, name)), None)


def check_usual(cluster: Cluster, dialect: str, *, instead: str = "tf_config") -> None:
    """Raises ClusterError if a field of the cluster other than its tasks and folder differs from the default."""
    check_whole(cluster, dialect)
    if name := difference(cluster, Cluster(tasks=cluster.tasks, job_dir=cluster.job_dir)):
        raise cannot(cluster, dialect, f"{name} other than the usual", instead)


def check_read(cluster: Cluster, dialect: str, text: str, parse: Callable[[Document], Cluster]) -> None:
    """Raises ClusterError if the dialect's reader, `parse`, refuses `text`, YAML without hosts and ports, or finds another
    cluster in it."""
    try:
        again = parse(load(Document("written", text), Source(dialect, "written")))
    except ClusterError as error:
        raise cannot(cluster, dialect, f"this cluster ({str(error).partition(': ')[2]})") from None
    open_tasks = tuple(dataclasses.replace(task, host=None, port=None) for task in cluster.tasks)
    expected = dataclasses.replace(cluster, tasks=open_tasks)
    if name := difference(expected, again):
        raise cannot(cluster, dialect, f"{name} {shown(getattr(expected, name))}")


def job_dir_note(cluster: Cluster, dialect: str) -> list[str]:
    """Returns the note about a folder of the job that is left out; empty if there is none."""
    if cluster.job_dir is None:
        return []
    return [f"{dialect} has no job directory: give your program {json.dumps(cluster.job_dir)} itself."]


def address_notes(cluster: Cluster, dialect: str) -> list[str]:
    """Returns the note about hosts and ports that are left out, because the system chooses its own; empty if all are open."""
    named = next((task for task in cluster.tasks if task.host is not None), None)
    if named is None:
        return []
    return [
        f"{dialect} chooses the machines and ports: the host {named.host} of {named.name} is not carried over, nor are others."
    ]
