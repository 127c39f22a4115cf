"""Reads jobs that consist of named groups of pods: JobSet, and the Job of Volcano.

Sources: kubernetes-sigs/jobset v0.8 `api/jobset/v1alpha2/jobset_types.go` (pods are
`<jobset>-<group>-<job>-<pod>.<subdomain>`); volcano-sh/volcano v1.11 `docs/user-guide` and `pkg/controllers/job/plugins/svc`
(pods are `<job>-<task>-<index>.<job>`).

The name of a group says which job of TensorFlow it is. The only group of a JobSet trains, whatever it is called. A group that
only runs mpirun has no rank.
"""

import re
from collections.abc import Callable

from tfdist.cluster import Cluster, Task
from tfdist.dialects.kubernetes.fields import checked_total, need, replica_count
from tfdist.dialects.kubernetes.pods import container, gpus, namespace, object_name, port, tpu
from tfdist.dialects.parsing.document import shown
from tfdist.dialects.parsing.node import Node

VOLCANO = "Volcano Job"
"""How `manifest` calls a Job of `batch.volcano.sh`."""

_JOBS = {
    "chief": "chief",
    "master": "chief",
    "worker": "worker",
    "ps": "ps",
    "parameterserver": "ps",
    "pserver": "ps",
    "trainer": "worker",
    "mpiworker": "worker",
    "node": "worker",
    "evaluator": "evaluator",
}
_NAME = re.compile(r"(?:(?:tf|tensorflow)[-_]?)?(ps|.*?)s?", re.ASCII)
_LAUNCHERS = ("launcher", "mpimaster")
_VOLCANO_PORT = 2222


def _jobset(job: Node) -> Cluster:
    spec = need(job, "spec")
    name, space = object_name(job), namespace(job)
    network = spec.get("network")
    subdomain = network.get("subdomain") if network else None
    groups = list(need(spec, "replicatedJobs").entries())
    domain = f"{subdomain.text() if subdomain else name}.{space}.svc"
    tasks: list[Task] = []
    for group, role in _roles(groups, job, is_mpi=False, single="worker"):
        template = group.get("template")
        inner = template.get("spec") if template else None
        number = (inner.get("parallelism") or inner.get("completions")) if inner else None
        pods, jobs = (1 if number is None else number.count(0)), replica_count(group)
        pod = container(inner.get("template") if inner else None, None)
        width = _width(pod, role)
        label = group.child("name").value
        for index in range(checked_total(group, tasks, jobs * pods, width)):
            host = f"{name}-{label}-{index // pods}-{index % pods}.{domain}" if name and label else None
            tasks.append(_task(tasks, role, host, None, width))
    return _cluster(tasks, job, spec)


def _volcano(job: Node) -> Cluster:
    spec = need(job, "spec")
    name, space = object_name(job), namespace(job)
    tasks: list[Task] = []
    plugins = spec.get("plugins")
    used = plugins.mapping().keys() if plugins else set()
    is_mpi = "pytorch" not in used and not used.isdisjoint({"ssh", "mpi"})
    for group, role in _roles(list(need(spec, "tasks").entries()), job, is_mpi=is_mpi, single=None):
        pod = container(group.get("template"), None)
        width, label = _width(pod, role), group.child("name").value
        here = port(pod, "tfjob-port", _VOLCANO_PORT)
        for index in range(checked_total(group, tasks, replica_count(group), width)):
            host = f"{name}-{label}-{index}.{name}.{space}.svc" if name and label else None
            tasks.append(_task(tasks, role, host, here if host else None, width))
    return _cluster(tasks, job, spec)


def _roles(groups: list[Node], job: Node, *, is_mpi: bool, single: str | None) -> list[tuple[Node, str]]:
    """Returns the groups that train, and the job of each.

    Args:
        groups: the groups of pods.
        job: the whole object, for messages.
        is_mpi: whether a master only starts the ranks of the others.
        single: the job of the only group, if its name says nothing.

    Raises:
        ClusterError: if a name says nothing about the job.
    """
    labels = [str(group.child("name").value or "").lower() for group in groups]
    launchers = _LAUNCHERS if any(label in _LAUNCHERS for label in labels) else ("master",) if is_mpi else ()
    found: list[tuple[Node, str]] = []
    for group, label in zip(groups, labels, strict=True):
        if label in launchers:
            continue  # It runs mpirun and no rank.
        match = _NAME.fullmatch(label)
        role = _JOBS.get(match[1].replace("-", "").replace("_", "")) if match else None
        role = role or (single if len(groups) == 1 else None)
        if role is None:
            known = ", ".join(dict.fromkeys(_JOBS.values()))
            raise group.error(
                f"{shown(label)} is not the name of a job that trains; they are {known}; rename it, or leave it out of the "
                "file if its pods do not train"
            )
        found.append((group, role))
    if not any(role in ("ps", "evaluator") for _, role in found):
        # Without ps tasks a master is rank 0 of those that train, as in PyTorchJob.
        found = [(group, "worker") for group, _ in sorted(found, key=lambda each: each[1] != "chief")]
    if not found:
        raise job.error("there is no group of pods that trains")
    return found


def _width(pod: Node | None, role: str) -> int:
    if (asked := tpu(pod)) is not None:
        raise asked.error("the pods ask for TPUs, which no strategy of tfdist uses")
    return 0 if role == "ps" else gpus(pod)


def _task(tasks: list[Task], role: str, host: str | None, here: int | None, width: int) -> Task:
    index = sum(task.job == role for task in tasks)
    return Task(role, index, host, here, max(1, width), width)


def _cluster(tasks: list[Task], job: Node, spec: Node) -> Cluster:
    if not tasks:
        raise spec.error("there are no pods")
    return Cluster(tuple(tasks), source=job.source)


READERS: dict[str, Callable[[Node], Cluster]] = {"JobSet": _jobset, VOLCANO: _volcano}
"""Kind of training job -> its reader."""
