"""What `plain_objects` and `write_tfjob` share: names, ports, pods, metadata and comments of the objects that they write."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.dialects.kubernetes.pods import GPUS
from tfdist.dialects.kubernetes.training_jobs import TF_CONTAINER, TF_PORT, TF_PORT_NAME
from tfdist.dialects.writing.containers import IMAGE_OPTIONS, PLACEHOLDER_IMAGE, Program, placeholder_note
from tfdist.dialects.writing.unsupported import cannot

OPTIONS = IMAGE_OPTIONS | {"name": "the name of the job", "namespace": "its namespace"}

DEFAULT_NAME = "tfdist"
MAX_VARIABLE = (128 << 10) - len("TF_CONFIG=") - 1
"""Bytes that Linux passes as the value of TF_CONFIG (MAX_ARG_STRLEN, execve(2), less the name and the end)."""

_LONGEST = 63
_HOST = re.compile(
    r"(?P<name>[a-z0-9][-a-z0-9]*)-(?:chief|master|worker|ps|evaluator)-[0-9]+"
    r"(?:\.(?P<space>[a-z0-9][-a-z0-9]*)\.svc(?:\..*)?|\.(?P=name)(?:\.(?P<far_space>[a-z0-9][-a-z0-9]*)\.svc)?)"
)
"""Host names of tasks: those of TFJob, which has a service for each pod, and those that `plain_objects` writes."""


def named(cluster: Cluster, given: Program) -> Program:
    """Returns the program with a name: the given one, else the one in the host names that Kubernetes made, else the default.

    Raises ClusterError if the names of the tasks would be too long.
    """
    matches = [_HOST.fullmatch(task.host) if task.host else None for task in cluster.tasks]
    found = {(match["name"], match["space"] or match["far_space"]) for match in matches if match}
    name, space = found.pop() if len(found) == 1 and all(matches) else (None, None)
    result = replace(given, name=given.name or name or DEFAULT_NAME, namespace=given.namespace or space)
    assert result.name is not None
    longest = f"{result.name}-evaluator-{max(task.index for task in cluster.tasks)}"
    if len(longest) > _LONGEST or not result.name[0].isalpha():
        raise cluster.source.error(
            f"the name {result.name} would give pods names such as {longest}; they are at most {_LONGEST} characters and "
            "start with a letter: choose another name",
            field="--name",
        )
    return result


def alike(cluster: Cluster, dialect: str, job: str) -> Task:
    """Returns a task that represents all tasks of a job, which in Kubernetes are instances of one pod template.

    Raises ClusterError if the tasks have different numbers of GPUs.
    """
    tasks = cluster.job(job)
    if len({task.gpus for task in tasks}) > 1:
        raise cannot(cluster, dialect, f"{job} tasks with different numbers of GPUs")
    return tasks[0]


def with_addresses(cluster: Cluster, host: "Mapping[str, str]") -> Cluster:
    """Returns the cluster with one port for each job, and the host names of `host`: job -> name, with `{}` for the index."""
    ports = {job: _port(cluster.job(job)) for job in host}
    tasks = [replace(task, host=host[task.job].format(task.index), port=ports[task.job]) for task in cluster.tasks]
    return replace(cluster, tasks=tuple(tasks))


def _port(tasks: tuple[Task, ...]) -> int:
    """Returns the port that all tasks of a job have, else 2222. Every pod has its own address, so one port is enough."""
    ports = {task.port for task in tasks}
    only = ports.pop() if len(ports) == 1 else None
    return TF_PORT if only is None else only


def pod(given: Program, task: Task, env: "Sequence[Mapping[str, Any]]" = ()) -> dict[str, Any]:
    """Returns the specification of the pods that run `task`: one container."""
    container: dict[str, Any] = {"name": TF_CONTAINER, "image": given.image or PLACEHOLDER_IMAGE, "command": given.words}
    if env:
        container["env"] = [dict(entry) for entry in env]
    container["ports"] = [{"name": TF_PORT_NAME, "containerPort": task.port}]
    if task.gpus:
        container["resources"] = {"limits": {GPUS[0]: str(task.gpus)}}
    return {"containers": [container]}


def notes(before: Cluster, after: Cluster, given: Program) -> list[str]:
    """Returns the comments of a manifest: placeholders to replace, and the described addresses that it does not carry over."""
    lines = placeholder_note(given, "in every pod")
    moved = [task for task, other in zip(before.tasks, after.tasks, strict=True) if task.host not in (None, other.host)]
    if moved:
        lines.append(
            f"Kubernetes names the pods: the host {moved[0].host} of {moved[0].name} is not carried over, nor are others."
        )
    changed = [task for task, other in zip(before.tasks, after.tasks, strict=True) if task.port not in (None, other.port)]
    if changed:
        lines.append(f"Every pod has its own address: all {changed[0].job} tasks listen on one port.")
    return lines


def metadata(name: str, given: Program, **more: Any) -> dict[str, Any]:
    """Returns the metadata of an object."""
    return {"name": name} | ({"namespace": given.namespace} if given.namespace else {}) | more
