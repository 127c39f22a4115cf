"""Reads jobs that consist of groups of pods: JobSet, LeaderWorkerSet, and the Job of Volcano.

Sources: kubernetes-sigs/jobset v0.8 `api/jobset/v1alpha2/jobset_types.go` (pods are
`<jobset>-<group>-<job>-<pod>.<subdomain>`); volcano-sh/volcano v1.11 `docs/user-guide`, `pkg/controllers/job/plugins/svc` and
`pkg/controllers/job/plugins/distributed-framework` (pods are `<job>-<task>-<index>.<job>`; the arguments of the plugins
tensorflow, pytorch and mpi may name the tasks); kubernetes-sigs/lws `api/leaderworkerset/v1/leaderworkerset_types.go` (pods are
`<set>-0.<set>`, the leader, and `<set>-0-<i>.<set>`).

The name of a group says which job of TensorFlow it is. The only group of a JobSet trains, whatever it is called. A group that
only runs mpirun has no rank.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from tfdist.cluster import Cluster, Task
from tfdist.dialects.kubernetes.fields import checked_total, need, pods_at_a_time, replica_count
from tfdist.dialects.kubernetes.launcher import check_processes
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
_PLUGINS = {"tensorflow": ("chief", "worker", "ps", "evaluator"), "pytorch": ("master", "worker"), "mpi": ("master", "worker")}
"""Plugins of Volcano, and the flags that give the names of tasks: `tensorflow: ["--ps=server"]`."""

_VOLCANO_PORT = 2222


def _jobset(job: Node) -> Cluster:
    spec = need(job, "spec")
    name, space = object_name(job), namespace(job)
    subdomain = spec.find("network", "subdomain")
    groups = list(need(spec, "replicatedJobs").entries())
    domain = f"{subdomain.text() if subdomain else name}.{space}.svc"
    tasks: list[Task] = []
    for group, role in _roles(groups, job, is_mpi=False, single="worker"):
        inner = group.find("template", "spec")
        pods, jobs = pods_at_a_time(inner) if inner else 1, replica_count(group)
        width = _width(container(group.find("template", "spec", "template"), None), role)
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
    names, plugin_port = _of_plugins(plugins)
    groups = list(need(spec, "tasks").entries())
    roles = _roles(groups, job, is_mpi=is_mpi, single=None, names=names)
    for group, role in roles:
        pod = container(group.get("template"), None)
        width, label = _width(pod, role), group.child("name").value
        here = plugin_port or port(pod, "tfjob-port", _VOLCANO_PORT)
        for index in range(checked_total(group, tasks, replica_count(group), width)):
            host = f"{name}-{label}-{index}.{name}.{space}.svc" if name and label else None
            tasks.append(_task(tasks, role, host, here if host else None, width))
    slots = sum(task.slots for task in tasks)
    of_gpus = f" with {slots} GPUs" if slots > len(tasks) else ""
    for launcher in (group for group in groups if all(group is not each for each, _ in roles)):
        check_processes(launcher, {len(tasks), slots}, len(tasks), f"there are {len(tasks)} pods that train{of_gpus}")
    return _cluster(tasks, job, spec)


def _leader_worker_set(job: Node) -> Cluster:
    spec = need(job, "spec")
    spec.check_near(("replicas", "leaderWorkerTemplate", "networkConfig"), "LeaderWorkerSet")
    groups = replica_count(spec)
    if groups != 1:
        raise spec.child("replicas").error(
            f"there are {groups} groups of pods, and each would train a model of its own; give 1"
        )
    template = need(spec, "leaderWorkerTemplate")
    template.check_near(("size", "leaderTemplate", "workerTemplate"), "leaderWorkerTemplate")
    name, space, given = object_name(job), namespace(job), template.get("size")
    count = 1 if given is None else given.count(1)
    policy = spec.find("networkConfig", "subdomainPolicy")
    is_unique = policy is not None and policy.value == "UniquePerReplica"
    domain = f"{name}-0.{space}.svc" if is_unique else f"{name}.{space}.svc"
    member = template.get("workerTemplate")
    first, others = (_width(container(pod, None), "worker") for pod in (template.get("leaderTemplate") or member, member))
    checked_total(given or template, [], count, max(first, others))
    tasks: list[Task] = []
    for index in range(count):
        pod = f"{name}-0-{index}" if index else f"{name}-0"
        tasks.append(_task(tasks, "worker", f"{pod}.{domain}" if name else None, None, others if index else first))
    return _cluster(tasks, job, spec)


def _of_plugins(plugins: Node | None) -> tuple[dict[str, str], int | None]:
    """Returns what the arguments of Volcano's plugins say: usual names of tasks by their own, and the port in TF_CONFIG."""
    names: dict[str, str] = {}
    here: int | None = None
    for plugin, flags in _PLUGINS.items():
        entry = plugins.get(plugin) if plugins else None
        if entry is None:
            continue
        given = _flags([node.text() for node in entry.entries()])
        names |= {given[flag].lower(): flag for flag in flags if flag in given}
        if plugin == "tensorflow":
            text = given.get("port", str(_VOLCANO_PORT))
            if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 65536):
                raise entry.error(f"--port: {shown(text)} is not a port; expected a whole number from 1 to 65535")
            here = int(text)
    return names, here


def _flags(words: list[str]) -> dict[str, str]:
    """Returns the values of flags as Go's flag package takes them: `--ps=a`, `-ps=a`, or two words."""
    given: dict[str, str] = {}
    left = iter(words)
    for word in left:
        name, equals, value = word.lstrip("-").partition("=")
        given[name] = value if equals else next(left, "")
    return given


def _roles(
    groups: list[Node], job: Node, *, is_mpi: bool, single: str | None, names: Mapping[str, str] = MappingProxyType({})
) -> list[tuple[Node, str]]:
    """Returns the groups that train, and the job of each.

    Args:
        groups: the groups of pods.
        job: the whole object, for messages.
        is_mpi: whether a master only starts the ranks of the others.
        single: the job of the only group, if its name says nothing.
        names: the usual name of a group by its own, where that is another.

    Raises:
        ClusterError: if a name says nothing about the job.
    """
    own = [str(group.child("name").value or "").lower() for group in groups]
    labels = [names.get(label, label) for label in own]
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
            given = shown(group.child("name").value)
            raise group.error(
                f"{given} is not the name of a job that trains; they are {known}; rename it, or leave it out of the "
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


READERS: dict[str, Callable[[Node], Cluster]] = {"JobSet": _jobset, "LeaderWorkerSet": _leader_worker_set, VOLCANO: _volcano}
"""Kind of training job -> its reader."""
