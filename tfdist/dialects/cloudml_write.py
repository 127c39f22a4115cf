"""Writing the CloudML dialect: config.yaml of a cluster with one chief."""

import dataclasses
import json

from tfdist.cluster import Cluster, Task
from tfdist.dialects.cloudml_fields import REPLICAS, TIERS
from tfdist.errors import ClusterError

DEFAULT_MACHINE = "n1-standard-4"
"""The machine of scale tier BASIC, for tasks of which the description does not say on what they run."""


def write_config(cluster: Cluster) -> str:
    """Returns config.yaml; see `cloudml.write`."""
    _check(cluster)
    jobs = {job: _machine(cluster, cluster.job(job)) for _, job in REPLICAS}
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
    machine, _, accelerator = shown.partition("+")
    lines = [f"  {name}Type: {machine}"]
    if name != "master":
        lines.append(f'  {name}Count: "{count}"')
    if accelerator:
        number, _, model = accelerator.partition("x")
        lines += [f"  {name}Config:", "    acceleratorConfig:", f'      count: "{number}"', f"      type: {model}"]
    return lines


def _cannot(cluster: Cluster, what: str) -> ClusterError:
    return cluster.source.error(f"CloudML has no words for {what}; translate to tf_config instead")


def _check(cluster: Cluster) -> None:
    if not cluster.job("chief"):
        raise _cannot(cluster, "a cluster without a chief (its master)")
    plain = Cluster(tasks=cluster.tasks, job_dir=cluster.job_dir)
    for entry in dataclasses.fields(Cluster):
        if entry.compare and getattr(plain, entry.name) != getattr(cluster, entry.name):
            raise _cannot(cluster, f"{entry.name} other than the usual")


def _machine(cluster: Cluster, tasks: tuple[Task, ...]) -> tuple[str, int]:
    """The machine type and the GPUs of the tasks of one job, which all have the same in CloudML."""
    kinds = {(task.machine_type, task.slots, task.gpus) for task in tasks}
    if len(kinds) > 1:
        raise _cannot(cluster, f"{tasks[0].job} tasks on different machines")
    machine_type, slots, gpus = kinds.pop() if kinds else (DEFAULT_MACHINE, 1, 0)
    if machine_type is None and gpus:
        raise _cannot(cluster, f"GPUs of {tasks[0].job} tasks whose machine type is open")
    if slots != max(1, gpus):
        raise _cannot(cluster, f"{slots} replicas on a machine with {gpus} GPUs")
    return machine_type or DEFAULT_MACHINE, gpus
