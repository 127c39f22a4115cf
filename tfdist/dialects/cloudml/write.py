"""Writes config.yaml of a cluster with a chief."""

import json

from tfdist.cluster import Cluster, Task
from tfdist.dialects.cloudml.tiers import TIERS
from tfdist.dialects.cloudml.training_input import REPLICAS
from tfdist.dialects.writing.unsupported import cannot, check_usual

DEFAULT_MACHINE = "n1-standard-4"
"""The machine of scale tier BASIC, for tasks whose description names no machine."""

_WHAT = "CloudML"


def write(cluster: Cluster) -> str:
    """Returns config.yaml with the name of a tier if one fits, else CUSTOM. It has no addresses: CloudML gives them.

    Raises:
        ClusterError: if CloudML has no words for the cluster.
    """
    check(cluster, _WHAT)
    jobs = {job: machine(cluster, cluster.job(job), _WHAT) for _, job in REPLICAS}
    present = tuple((job, len(cluster.job(job)), *jobs[job]) for job in jobs if cluster.job(job))
    lines = ["trainingInput:"]
    tier = next((name for name, tier in TIERS.items() if tier.machines == present), "CUSTOM")
    lines.append(f"  scaleTier: {tier}")
    if tier == "CUSTOM":
        for name, job in REPLICAS:
            if cluster.job(job):
                lines += _replica(name, len(cluster.job(job)), jobs[job][0])
    if cluster.job_dir is not None:
        lines.append(f"  jobDir: {json.dumps(cluster.job_dir)}")
    return "\n".join(lines) + "\n"


def _replica(name: str, count: int, shown: str) -> list[str]:
    kind, _, accelerator = shown.partition("+")
    lines = [f"  {name}Type: {kind}"]
    if name != "master":
        lines.append(f'  {name}Count: "{count}"')
    if accelerator:
        number, _, model = accelerator.partition("x")
        lines += [f"  {name}Config:", "    acceleratorConfig:", f'      count: "{number}"', f"      type: {model}"]
    return lines


def machine(cluster: Cluster, tasks: tuple[Task, ...], dialect: str) -> tuple[str, int]:
    """Returns the machine type and the GPUs of the tasks of one job, which Google's dialects give once for all of them.

    Raises:
        ClusterError: if they differ, or a task has another number of replicas than GPUs.
    """
    kinds = {(task.machine_type, task.slots, task.gpus) for task in tasks}
    if len(kinds) > 1:
        raise cannot(cluster, dialect, f"{tasks[0].job} tasks on different machines")
    machine_type, slots, gpus = kinds.pop() if kinds else (DEFAULT_MACHINE, 1, 0)
    if machine_type is None and gpus:
        raise cannot(cluster, dialect, f"GPUs of {tasks[0].job} tasks whose machine type is open")
    if slots != max(1, gpus):
        raise cannot(cluster, dialect, f"{slots} replicas on a machine with {gpus} GPUs")
    return machine_type or DEFAULT_MACHINE, gpus


def check(cluster: Cluster, dialect: str) -> None:
    """Raises ClusterError if Google's dialects have no words for the cluster."""
    if not cluster.job("chief"):
        raise cannot(cluster, dialect, "a cluster without a chief (its master)")
    check_usual(cluster, dialect)
