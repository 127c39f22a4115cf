"""Writes config.yaml of a cluster with a chief."""

import re
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.dialects.cloudml.machines import ACCELERATORS, CLOUD_TPU
from tfdist.dialects.cloudml.machines import machine as find_machine
from tfdist.dialects.cloudml.tiers import TIERS
from tfdist.dialects.cloudml.training_input import REPLICAS, parse
from tfdist.dialects.parsing.document import shown as quoted
from tfdist.dialects.writing.containers import dump
from tfdist.dialects.writing.unsupported import cannot, check_read, check_usual

DEFAULT_MACHINE = "n1-standard-4"
"""The machine of scale tier BASIC, for tasks whose description names no machine."""

_WHAT = "CloudML"
_MACHINE = re.compile(r"(?=.)([A-Za-z0-9][A-Za-z0-9_-]{0,62})?(\+[1-9][0-9]{0,5}x[A-Z][A-Z0-9_]{0,62})?", re.ASCII)


def write(cluster: Cluster) -> str:
    """Returns config.yaml with the name of a tier if one fits, else CUSTOM. It has no addresses: CloudML gives them.

    Raises:
        ClusterError: if CloudML has no words for the cluster. Vertex AI has machines and accelerators that CloudML never had.
    """
    check(cluster, _WHAT)
    jobs = {job: machine(cluster, cluster.job(job), _WHAT) for _, job in REPLICAS}
    present = tuple((job, len(cluster.job(job)), *jobs[job]) for job in jobs if cluster.job(job))
    tier = next((name for name, tier in TIERS.items() if tier == present), "CUSTOM")
    fields: dict[str, Any] = {"scaleTier": tier}
    if tier == "CUSTOM":
        for name, job in REPLICAS:
            if cluster.job(job):
                fields |= _replica(cluster, name, cluster.job(job), jobs[job][0])
    if cluster.job_dir is not None:
        fields["jobDir"] = cluster.job_dir
    text = dump([{"trainingInput": fields}], ())
    check_read(cluster, _WHAT, text, parse)
    return text


def _replica(cluster: Cluster, name: str, tasks: tuple[Task, ...], shown: str) -> dict[str, Any]:
    kind, _, accelerator = shown.partition("+")
    number, _, model = accelerator.partition("x")
    if (kind != CLOUD_TPU and find_machine(kind) is None) or (model and model not in ACCELERATORS):
        raise cannot(cluster, _WHAT, f"the machine {shown} of {tasks[0].name}", instead="vertex")
    fields: dict[str, Any] = {f"{name}Type": kind}
    if name != "master":
        fields[f"{name}Count"] = str(len(tasks))
    if model:
        fields[f"{name}Config"] = {"acceleratorConfig": {"count": number, "type": model}}
    return fields


def machine(cluster: Cluster, tasks: tuple[Task, ...], dialect: str) -> tuple[str, int]:
    """Returns the machine type and the GPUs of the tasks of one job, which Google's dialects give once for all of them.

    Raises:
        ClusterError: if they differ or are no names, or a task has another number of replicas than GPUs.
    """
    kinds = {(task.machine_type, task.slots, task.gpus) for task in tasks}
    if len(kinds) > 1:
        raise cannot(cluster, dialect, f"{tasks[0].job} tasks on different machines")
    machine_type, slots, gpus = kinds.pop() if kinds else (DEFAULT_MACHINE, 1, 0)
    if machine_type is not None and not _MACHINE.fullmatch(machine_type):
        raise cannot(cluster, dialect, f"the machine {quoted(machine_type)} of {tasks[0].name}")
    if machine_type is None and gpus:
        raise cannot(cluster, dialect, f"GPUs of {tasks[0].job} tasks whose machine type is open")
    if slots != max(1, gpus):
        raise cannot(cluster, dialect, f"{slots} replicas on a machine with {gpus} GPUs")
    return machine_type or DEFAULT_MACHINE, gpus


def check(cluster: Cluster, dialect: str) -> None:
    """Raises ClusterError if Google's dialects have no words for the cluster."""
    if not cluster.job("chief"):
        raise cannot(cluster, dialect, "a cluster without a chief (its master)")
    if cluster.job_dir is not None and cluster.job_dir.encode(errors="replace").decode() != cluster.job_dir:
        raise cannot(cluster, dialect, f"job_dir {quoted(cluster.job_dir)}, which is not Unicode")
    check_usual(cluster, dialect)
