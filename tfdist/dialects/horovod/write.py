"""Writes a Horovod host file."""

from itertools import groupby

from tfdist.cluster import Cluster
from tfdist.dialects.writing.unsupported import check_usual, job_dir_note


def write(cluster: Cluster) -> str:
    """Returns a host file, one line for each host. It has no ports: Horovod chooses its own.

    Raises:
        ClusterError: if the cluster has other tasks than workers, workers of several slots or several groups, or ranks of a
            host that do not follow each other.
    """
    cannot = cluster.source.error
    for job in ("chief", "ps", "evaluator"):
        if cluster.job(job):
            hint = "rank 0 is the chief: describe it as worker 0" if job == "chief" else "it trains by AllReduce alone"
            raise cannot(f"Horovod has no words for a {job}; {hint}")
    if cluster.partial or any(task.slots != 1 for task in cluster.tasks):
        raise cannot("Horovod has one process for each slot; describe a worker task for each, and all of them")
    check_usual(cluster, "Horovod")
    hosts = [(host, len(list(tasks))) for host, tasks in groupby(task.host or "localhost" for task in cluster.tasks)]
    names = [host.lower() for host, _ in hosts]
    if len(set(names)) < len(names):
        raise cannot("Horovod needs consecutive ranks on a host; list the workers by host")
    if any(":" in name for name in names):
        raise cannot("Horovod's host file has no IPv6 addresses; use a name")
    return "".join(f"{host} slots={slots}\n" for host, slots in hosts)


def notes(cluster: Cluster) -> list[str]:
    """Returns what a host file leaves out. These are no comments in it: Horovod's own reader takes only hosts."""
    lines = job_dir_note(cluster, "Horovod")
    if any(task.port is not None for task in cluster.tasks):
        lines.append("Horovod chooses the ports: those of the description are not carried over.")
    if any(task.gpus for task in cluster.tasks):
        lines.append("Horovod's host file does not say that a slot is a GPU.")
    return lines
