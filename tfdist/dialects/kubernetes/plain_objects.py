"""Plain Kubernetes objects, which need no operator: a headless Service, and one indexed Job for each job of the cluster.

A pod of an indexed Job has the host name `<job name>-<index>` and finds its index in an annotation. With `subdomain: <service>`
in the template it resolves as `<host name>.<service>`. `$(NAME)` in the value of an environment variable refers to a variable
that is defined before it. So TF_CONFIG is complete when the program starts, in any image and without a shell (Kubernetes
documentation: "Indexed Job with Pod-to-Pod Communication", "Define Dependent Environment Variables").
"""

import dataclasses
import json
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.dialects.kubernetes import parts
from tfdist.dialects.kubernetes.fields import pods_at_a_time
from tfdist.dialects.parsing.document import Document, is_json, shown
from tfdist.dialects.parsing.load import load
from tfdist.dialects.parsing.node import Node
from tfdist.dialects.tf_config.config import NAME as TF_CONFIG
from tfdist.dialects.tf_config.config import parse as parse_tf_config
from tfdist.dialects.writing.containers import Program, dump, program
from tfdist.dialects.writing.unsupported import check_whole
from tfdist.errors import Source

CARRIERS = {
    "Job": "completions",
    "StatefulSet": "replicas",
    "Deployment": "replicas",
    "ReplicaSet": "replicas",
    "ReplicationController": "replicas",
    "Pod": None,
}
"""Kinds that are pods or start them: kind -> field with the number of pods."""

_NUMBERED = ("Job", "StatefulSet")
"""Kinds that number their pods, so that one object can start all tasks of a job."""

_WHAT = "Kubernetes"
_INDEX = "JOB_COMPLETION_INDEX"
_INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_LABEL = "app.kubernetes.io/instance"


def carries_tf_config(entry: Node) -> bool:
    """Returns whether a container of this object has TF_CONFIG in its `env`."""
    return _variable(entry) is not None


def read_objects(carriers: list[Node]) -> Cluster:
    """Returns the cluster of the TF_CONFIG that these objects carry.

    Raises:
        ClusterError: if they carry different ones, or start another number of pods than TF_CONFIG has tasks.
    """
    clusters = [_cluster(entry) for entry in carriers]
    cluster = clusters[0][0]
    seen: set[tuple[str, int]] = set()
    for entry, (other, job, index) in zip(carriers, clusters, strict=True):
        if other != cluster:
            raise entry.error(
                f"its TF_CONFIG describes {other.describe()}, but another object's {cluster.describe()}, or other addresses"
            )
        tasks = {(job, index)} if index is not None else {(job, number) for number in range(len(cluster.job(job)))}
        if seen & tasks:
            which = "tasks" if index is None else f"task {index}"
            raise entry.error(f"two objects are the {job} {which} of one cluster; keep one of them")
        seen |= tasks
        _check_number(entry, job, index, len(tasks))
    missing = [task for task in cluster.tasks if (task.job, task.index) not in seen]
    if missing:
        raise carriers[0].error(f"TF_CONFIG has {missing[0].name}, and no object starts it")
    return cluster


def _check_number(entry: Node, job: str, index: int | None, tasks: int) -> None:
    """Raises ClusterError if an object starts another number of pods than it has tasks."""
    kind, spec = entry.child("kind").value, entry.child("spec")
    field = CARRIERS[kind]
    count = spec.get(field) if field else None
    number = pods_at_a_time(spec) if kind == "Job" else 1 if count is None else count.count(0)
    if kind not in _NUMBERED and tasks > 1:
        raise entry.error(f"the pods of a {kind} have no numbers; write one object for each of the {tasks} {job} tasks")
    if number != tasks and index is not None:
        raise (count or spec).error(f"{field} is {number}, and TF_CONFIG makes each of these pods {job}:{index}; make it 1")
    if number != tasks:
        raise (count or spec).error(f"{field} is {number}, but TF_CONFIG has {tasks} {job} tasks; make them equal")


def write(cluster: Cluster, **options: Any) -> str:
    """Returns a headless Service, and one indexed Job for each job of the cluster. The options are the fields of `Program`.

    Raises:
        ClusterError: if these objects cannot run the cluster, or an option is bad.
    """
    check_whole(cluster, _WHAT)
    given = parts.named(cluster, program(options))
    assert given.name is not None
    jobs = list(dict.fromkeys(task.job for task in cluster.tasks))
    tail = f"{given.name}.{given.namespace}.svc" if given.namespace else given.name
    addressed = parts.with_addresses(cluster, {job: f"{given.name}-{job}-{{}}.{tail}" for job in jobs})
    objects = [_service(given)]
    for job in jobs:
        objects.append(_job(addressed, given, parts.alike(addressed, _WHAT, job)))
    return dump(objects, parts.notes(cluster, addressed, given))


def _service(given: Program) -> dict[str, Any]:
    assert given.name is not None
    # Names have to resolve before the pods are ready: TensorFlow's servers wait for each other.
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {_LABEL: given.name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": parts.metadata(given.name, given), "spec": spec}


def _job(cluster: Cluster, given: Program, task: Task) -> dict[str, Any]:
    assert given.name is not None
    count, labels = len(cluster.job(task.job)), {_LABEL: given.name, "app.kubernetes.io/component": task.job}
    spec = {"restartPolicy": "OnFailure", "subdomain": given.name, **parts.pod(given, task, tf_config_env(cluster, task))}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": parts.metadata(f"{given.name}-{task.job}", given, labels=labels),
        "spec": {
            "completions": count,
            "parallelism": count,
            "completionMode": "Indexed",
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def tf_config_env(cluster: Cluster, task: Task) -> list[dict[str, Any]]:
    """Returns the variables of the pods of an indexed Job that give each its TF_CONFIG."""
    return [
        # Kubernetes adds this variable itself, but after TF_CONFIG, which then could not refer to it.
        {"name": _INDEX, "valueFrom": {"fieldRef": {"fieldPath": _INDEX_FIELD}}},
        {"name": "TF_CONFIG", "value": _tf_config(cluster, task)},
    ]


def _tf_config(cluster: Cluster, task: Task) -> str:
    config = cluster.tf_config(task.job, task.index)
    config["task"] = {"type": task.job, "index": ""}
    # `$$` keeps a $ of the description; the index is the only reference.
    text = json.dumps(config).replace("$", "$$").replace('"index": ""', f'"index": "$({_INDEX})"', 1)
    if len(text) > parts.MAX_VARIABLE:
        raise cluster.source.error(
            f"TF_CONFIG of {len(cluster.tasks)} tasks is {len(text)} bytes, and Linux passes at most {parts.MAX_VARIABLE} "
            "in one variable; describe fewer tasks, with several slots each"
        )
    return text


def _variable(entry: Node) -> Node | None:
    above = () if entry.child("kind").value == "Pod" else ("spec", "template")
    containers = entry.find(*above, "spec", "containers")
    for container in containers.entries() if containers else ():
        env = container.get("env")
        for variable in env.entries() if env else ():
            if isinstance(variable.value, dict) and variable.child("name").value == "TF_CONFIG":
                return variable
    return None


def _cluster(entry: Node) -> tuple[Cluster, str, int | None]:
    """Returns the cluster of one object, the job of its pods, and their index; None if the pod's number is the index."""
    variable = _variable(entry)
    assert variable is not None
    value = variable.get("value")
    if value is None:
        raise variable.error("TF_CONFIG has no value here; it has to be in the manifest for tfdist to read it")
    text = value.text().replace("$$", "$")
    where = value.error("").args[0].removesuffix(": ")
    source = Source(TF_CONFIG, where)
    if not is_json(text):
        raise source.error('this is not a JSON object; expected {"cluster": {...}, "task": {...}}')
    config = dict(load(Document(where, text), source).mapping)
    task = config.pop("task", None)
    kind = task.get("type") if isinstance(task, dict) else None
    cluster = parse_tf_config(Document(where, mapping=config))
    job = "chief" if kind == "master" else kind
    if not isinstance(job, str) or not cluster.job(job):
        raise source.error(f"the task is {shown(job)}, and the cluster has {cluster.describe()}", field="task")
    assert isinstance(task, dict)
    index = str(task.get("index", ""))[:10]
    if not index.isdecimal() or not index.isascii():
        return dataclasses.replace(cluster, source=entry.source), job, None
    if int(index) >= len(cluster.job(job)):
        raise source.error(f"the task is {job}:{index}, and the cluster has {cluster.describe()}", field="task")
    return dataclasses.replace(cluster, source=entry.source), job, int(index)
