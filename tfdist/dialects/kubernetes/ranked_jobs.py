"""Reads the jobs of Kubeflow whose replicas are the ranks of one group: PyTorchJob, JAXJob, XGBoostJob and PaddleJob.

Sources: kubeflow/training-operator v1.9 `pkg/apis/kubeflow.org/v1/{pytorch,jax,xgboost,paddlepaddle}_types.go`;
PaddleFlow/paddle-operator `api/v1/paddlejob_types.go`, an older PaddleJob with parameter servers.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tfdist.cluster import Cluster, Task
from tfdist.dialects.kubernetes.fields import (
    POLICY,
    check_version,
    checked_total,
    need,
    replica_count,
    replica_specs,
    slots_of_node,
)
from tfdist.dialects.kubernetes.launcher import processes_of_torchrun
from tfdist.dialects.kubernetes.pods import container, gpus, namespace, object_name, port
from tfdist.dialects.parsing.node import Node


@dataclass(frozen=True)
class _Kind:
    """What differs between these kinds: the field of the replicas, the container and port that train, the types of replicas,
    further fields, and older API versions.
    """

    name: str
    field: str
    container: str
    port: int
    port_name: str
    types: tuple[str, ...] = ("Master", "Worker")
    more: tuple[str, ...] = ()
    older: tuple[str, ...] = ()


def _reader(kind: _Kind) -> Callable[[Node], Cluster]:
    def read(job: Node) -> Cluster:
        check_version(job, ("kubeflow.org/v1", *kind.older))
        spec = need(job, "spec")
        spec.check_keys((kind.field, *kind.more, *POLICY), kind.name)
        processes = spec.get("nprocPerNode") or spec.find("elasticPolicy", "nProcPerNode")
        name, space = object_name(job), namespace(job)
        tasks: list[Task] = []
        found = replica_specs(spec, kind.field, kind.types)
        for role in sorted(found):  # The master has rank 0, worker i has rank i + 1. For TensorFlow all of them are workers.
            replicas = found[role]
            count = replica_count(replicas)
            if role == "Master" and count != 1:
                raise replicas.error(f"there are {count} replicas of Master; {kind.name} has one")
            pod = container(replicas.get("template"), kind.container)
            slots, devices = slots_of_node(processes, gpus(pod))
            if kind.name == "PyTorchJob":
                given = None if processes is None or processes.value in ("gpu", "auto") else slots
                slots = processes_of_torchrun(pod, given) or slots
                devices = min(slots, devices)
            here = port(pod, kind.port_name, kind.port)
            for index in range(checked_total(replicas, tasks, count, slots)):
                host = f"{name}-{role.lower()}-{index}.{space}.svc" if name else None
                tasks.append(Task("worker", len(tasks), host, here if host else None, slots, devices))
        return Cluster(tuple(tasks), source=job.source)

    return read


def _paddlejob(job: Node) -> Cluster:
    if job.child("apiVersion").value == "batch.paddlepaddle.org/v1":
        return _first_paddlejob(job)
    return _reader(_Kind("PaddleJob", "paddleReplicaSpecs", "paddle", 36543, "master", more=("elasticPolicy",)))(job)


def _first_paddlejob(job: Node) -> Cluster:
    """Reads the PaddleJob of paddle-operator. The operator takes pods' addresses when it runs, so they are open."""
    spec = need(job, "spec")
    spec.check_near(("ps", "worker", "heter"), "PaddleJob")
    tasks: list[Task] = []
    if spec.get("heter") is not None:
        raise spec.child("heter").error("heterogeneous trainers are not supported; give servers and trainers alone")
    for role in ("worker", "ps"):
        replicas = spec.get(role)
        if replicas is None:
            continue
        replicas.check_near(("replicas", "template", "requests", "limits"), "a role")
        width = 0 if role == "ps" else gpus(container(replicas.get("template"), None))
        for index in range(checked_total(replicas, tasks, replica_count(replicas), width)):
            tasks.append(Task(role, index, slots=max(1, width), gpus=width))
    if not tasks:
        raise spec.error("there is neither worker nor ps")
    return Cluster(tuple(tasks), source=job.source)


_PYTORCH = _Kind(
    "PyTorchJob",
    "pytorchReplicaSpecs",
    "pytorch",
    23456,
    "pytorchjob-port",
    more=("elasticPolicy", "nprocPerNode"),
    older=("kubeflow.org/v1beta2", "kubeflow.org/v1beta1"),
)

READERS: dict[str, Callable[[Node], Cluster]] = {
    "PyTorchJob": _reader(_PYTORCH),
    "JAXJob": _reader(_Kind("JAXJob", "jaxReplicaSpecs", "jax", 6666, "jaxjob-port", types=("Worker",))),
    "XGBoostJob": _reader(_Kind("XGBoostJob", "xgbReplicaSpecs", "xgboost", 9999, "xgboostjob-port")),
    "PaddleJob": _paddlejob,
}
"""Kind of training job -> its reader."""
