"""What a dialect writes reads back as the same cluster. What it leaves out is listed here; what else it cannot say it refuses."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tf_config import clusters

from tfdist.cluster import JOBS, Cluster, Task
from tfdist.dialects import read, singa
from tfdist.dialects.registry import writers
from tfdist.errors import ClusterError

NAMES = ("node1", "node2.example.com", "10.0.0.1", "10.0.0.2", "::1", "fe80::1%eth0", "Node1-b")
MACHINES = {(1, 0): (None, "n1-standard-4"), (2, 0): (None,), (1, 1): ("n1-standard-8+1xNVIDIA_TESLA_T4",), (4, 4): (None,)}
"""Slots and GPUs, and machines of Google's clouds that have them."""


@st.composite
def usual_clusters(draw: st.DrawFn) -> Cluster:
    """Clusters such as people have: tasks of a job alike, groups of one size. Each dialect can say many of them."""
    style = draw(st.sampled_from(["workers", "chief", "jobs", "groups"]))
    groups = draw(st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)])) if style == "groups" else None
    counts = dict.fromkeys(JOBS, 0)
    per_group = per_server_group = 1
    if groups:
        per_group, per_server_group = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        counts["worker"], counts["ps"] = groups[0] * per_group, groups[1] * per_server_group
    else:
        counts["worker"], counts["ps"] = draw(st.integers(0, 9)), draw(st.sampled_from([0, 0, 1, 3]))
    counts["chief"] = draw(st.integers(0, 1)) if style == "jobs" else int(style == "chief")
    counts["evaluator"] = draw(st.sampled_from([0, 0, 1, 2])) if style in ("chief", "jobs") else 0
    counts["ps"] = 0 if style == "workers" else counts["ps"]
    counts["worker"] = max(counts["worker"], 1 if counts["ps"] or not counts["chief"] else 0)
    where = draw(st.sampled_from(["open", "open", "a host each", "some on a host"]))
    first, port = draw(st.integers(0, len(NAMES) - 1)), draw(st.none() | st.integers(1024, 40_000))
    tasks: list[Task] = []
    for job in JOBS:
        slots, gpus = (1, 0) if job == "ps" or groups else draw(st.sampled_from([(1, 0), (1, 0), (1, 0), *MACHINES]))
        machine = draw(st.sampled_from(MACHINES[slots, gpus]))
        for index in range(counts[job]):
            host = None
            if where == "a host each":
                host = f"{job}-{index}.svc"
            elif where == "some on a host":
                host = NAMES[(first + len(tasks) // 3) % len(NAMES)]
            number = port + len(tasks) if port and host else None
            tasks.append(Task(job, index, host, number, slots, gpus, machine))
    fields = {"job_dir": draw(st.sampled_from([None, None, "gs://bucket/out", 'a "b" \\ ü # $(X)']))}
    if groups:
        fields |= {
            "worker_groups": _runs(groups[0], per_group),
            "server_groups": _runs(groups[1], per_server_group),
            "separate_servers": draw(st.booleans()),
            "sync_period": draw(st.sampled_from([1, 8, 2**31 - 1])),
            "share_memory": draw(st.booleans()),
        }
    return Cluster(tuple(tasks), **fields)


def _runs(groups: int, size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(first, first + size)) for first in range(0, groups * size, size))


def without_addresses(cluster: Cluster) -> Cluster:
    tasks = tuple(dataclasses.replace(task, host=None, port=None) for task in cluster.tasks)
    return dataclasses.replace(cluster, tasks=tasks)


def without_ports(cluster: Cluster) -> Cluster:
    """Horovod's: hosts without ports, localhost where nothing is said, and no word on what computes a slot."""
    tasks = tuple(dataclasses.replace(task, host=task.host or "localhost", port=None, gpus=0) for task in cluster.tasks)
    return dataclasses.replace(cluster, tasks=tasks, separate_servers=True)


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


def again(dialect: str, cluster: Cluster, folder: Path) -> "list[Cluster]":
    """The cluster, written and read."""
    text = writers()[dialect].write(cluster)
    if dialect == "tf_config":
        return [read(config) for config in json.loads(text).values()]
    hosts = None
    if dialect == "singa" and all(task.host for task in cluster.tasks):
        hosts = folder / "hostfile"
        hosts.write_text(singa.write_hostfile(cluster))
    return [read(text.encode(), hostfile=hosts)]


@pytest.mark.parametrize("dialect", LEFT_OUT)
def test_what_is_written_reads_back_as_the_same_cluster(dialect: str, tmp_path: Path) -> None:
    count = {"written": 0, "refused": 0}

    def check(cluster: Cluster) -> None:
        try:
            read_back = again(dialect, cluster, tmp_path)
        except ClusterError as error:
            count["refused"] += 1
            message = str(error)
            # In one line it says what the dialect cannot say.
            assert message.isprintable() and len(message) > 40
            return
        count["written"] += 1
        for entry in read_back:
            assert LEFT_OUT[dialect](entry) == LEFT_OUT[dialect](cluster)

    for drawn, examples in ((usual_clusters(), 120), (clusters(), 40)):
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
