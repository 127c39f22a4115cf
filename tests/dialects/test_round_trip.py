"""What a dialect writes reads back as the same cluster. What it leaves out is listed here; what else it cannot say it refuses."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_strategies import GOOGLE_MACHINES, HOSTILE_JOB_DIRS, clusters, usual_clusters
from hypothesis import given, settings

from tfdist.cluster import Cluster, Task
from tfdist.dialects import read
from tfdist.dialects.cloudml.write import DEFAULT_MACHINE
from tfdist.dialects.registry import writers
from tfdist.dialects.singa.write import write_hostfile
from tfdist.errors import ClusterError


def without_addresses(cluster: Cluster) -> Cluster:
    tasks = tuple(dataclasses.replace(task, host=None, port=None) for task in cluster.tasks)
    return dataclasses.replace(cluster, tasks=tasks)


def without_ports(cluster: Cluster) -> Cluster:
    """Horovod's: hosts without ports, localhost where nothing is said, no folder, and no word on what computes a slot."""
    tasks = tuple(dataclasses.replace(task, host=task.host or "localhost", port=None, gpus=0) for task in cluster.tasks)
    return dataclasses.replace(cluster, tasks=tasks, separate_servers=True, job_dir=None)


LEFT_OUT: dict[str, Callable[[Cluster], Cluster]] = {
    "tf_config": lambda cluster: cluster.addressed(),
    "singa": lambda cluster: cluster,
    "horovod": without_ports,
    "slurm": without_addresses,
    "cloudml": without_addresses,
    "vertex": without_addresses,
    "kubernetes": without_addresses,
    "tfjob": lambda cluster: dataclasses.replace(without_addresses(cluster), job_dir=None),
}
"""What each dialect carries of a cluster; the pages of the dialects say so too. Ports and hosts that a system chooses itself are left out."""


def test_every_dialect_that_is_written_is_here() -> None:
    assert LEFT_OUT.keys() == writers().keys()


def again(dialect: str, text: str, cluster: Cluster, folder: Path) -> "list[Cluster]":
    """What is read of a text that was written of a cluster."""
    if dialect == "tf_config":
        return [read(text), *(read(config) for config in json.loads(text).values())]
    hosts = None
    if dialect == "singa" and all(task.host for task in cluster.tasks):
        hosts = folder / "hostfile"
        hosts.write_text(write_hostfile(cluster))
    return [read(text.encode(), hostfile=hosts)]


@pytest.mark.parametrize("dialect", LEFT_OUT)
def test_what_is_written_reads_back_as_the_same_cluster(dialect: str, tmp_path: Path) -> None:
    count = {"written": 0, "refused": 0}

    def check(cluster: Cluster) -> None:
        try:
            text = writers()[dialect].write(cluster)
        except ClusterError as error:
            count["refused"] += 1
            message = str(error)
            # In one line it says what the dialect cannot say.
            assert message.isprintable() and len(message) > 40
            return
        count["written"] += 1
        for entry in again(dialect, text, cluster, tmp_path):
            assert LEFT_OUT[dialect](entry) == LEFT_OUT[dialect](cluster)
            if dialect == "cloudml":
                machines = [task.machine_type or DEFAULT_MACHINE for task in cluster.tasks]
                assert [task.machine_type for task in entry.tasks] == machines
            if entry.job_dir != cluster.job_dir:  # Nothing is left out without a word.
                said = [*writers()[dialect].notes(cluster), *writers()[dialect].write(cluster).splitlines()]
                assert any(json.dumps(cluster.job_dir) in line for line in said)

    google = usual_clusters(GOOGLE_MACHINES, HOSTILE_JOB_DIRS)
    count_google = 60 if dialect in ("cloudml", "vertex") else 10
    for drawn, examples in ((usual_clusters(), 120), (clusters(), 40), (google, count_google)):
        settings(max_examples=examples, deadline=None, derandomize=True, database=None)(given(drawn)(check))()
    # Of what people have, a good part: a writer that refuses everything would have passed.
    assert count["written"] >= 10 and (count["refused"] or dialect == "tf_config"), count


@pytest.mark.parametrize(
    ("dialect", "cluster", "what"),
    [
        ("singa", Cluster((Task("chief", 0),)), "SINGA has no words for a chief"),
        ("horovod", Cluster((Task("worker", 0), Task("ps", 0))), "Horovod has no words for a ps"),
        ("horovod", Cluster((Task("worker", 0, "::1"),)), "Horovod's host file has no IPv6 addresses"),
        ("cloudml", Cluster((Task("worker", 0),)), "CloudML has no words for a cluster without a chief"),
        ("vertex", Cluster((Task("chief", 0),), sync_period=2), "Vertex AI has no words for sync_period other than the usual"),
        ("tfjob", Cluster((Task("chief", 0),), protocol="grpc+verbs"), "TFJob has no words for protocol other than the usual"),
        ("kubernetes", Cluster((Task("worker", 1),), partial=True), "Kubernetes has no words for a part of a cluster"),
        ("slurm", Cluster((Task("worker", 1),), partial=True), "Slurm has no words for a part of a cluster"),
    ],
)
def test_what_a_dialect_cannot_say_is_named(dialect: str, cluster: Cluster, what: str) -> None:
    with pytest.raises(ClusterError) as caught:
        writers()[dialect].write(cluster)
    assert what in str(caught.value)
