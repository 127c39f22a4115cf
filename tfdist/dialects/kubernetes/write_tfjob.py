"""Writes Kubeflow's TFJob, which `training_jobs` reads."""

import json
from typing import Any

from tfdist.cluster import Cluster
from tfdist.dialects.kubernetes import parts
from tfdist.dialects.kubernetes.training_jobs import TF_JOBS
from tfdist.dialects.writing.containers import Program, dump, program
from tfdist.dialects.writing.unsupported import cannot, check_usual, job_dir_note

_WHAT = "TFJob"


def write(cluster: Cluster, **options: Any) -> str:
    """Returns a TFJob. Its operator gives the addresses and TF_CONFIG. The options are the fields of `Program`.

    Raises:
        ClusterError: if TFJob has no words for the cluster, or an option is bad.
    """
    _check(cluster)
    given = parts.named(cluster, program(options))
    kinds = {job: kind for kind, job in TF_JOBS.items() if kind != "Master"}
    chief = next(iter(cluster.job("chief")), None)
    if chief is not None and chief.host is not None and chief.host.startswith(f"{given.name}-master-0."):
        kinds["chief"] = "Master"
    jobs = [job for job in kinds if cluster.job(job)]
    space = given.namespace or "default"
    hosts = {job: f"{given.name}-{kinds[job].lower()}-{{}}.{space}.svc" for job in jobs}
    addressed = parts.with_addresses(cluster, hosts)
    comments = parts.notes(cluster, addressed, given)
    comments += job_dir_note(cluster, _WHAT)
    length = len(json.dumps(addressed.cluster_spec()))
    if length > parts.MAX_VARIABLE:
        comments.append(f"The pods will not start: TF_CONFIG is over {length} bytes, and Linux passes {parts.MAX_VARIABLE}.")
    return dump([_object(addressed, given, {job: kinds[job] for job in jobs})], comments)


def _object(cluster: Cluster, given: Program, kinds: dict[str, str]) -> dict[str, Any]:
    assert given.name is not None
    specs = {
        kind: {
            "replicas": len(cluster.job(job)),
            "restartPolicy": "OnFailure",
            "template": {"spec": parts.pod(given, parts.alike(cluster, _WHAT, job))},
        }
        for job, kind in kinds.items()
    }
    # TFJob ends with its chief. `Running`, its default, would kill an evaluator before the last checkpoint.
    policy = {"cleanPodPolicy": "None" if cluster.job("evaluator") else "Running"}
    spec = {"runPolicy": policy, "tfReplicaSpecs": specs}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": parts.metadata(given.name, given), "spec": spec}


def _check(cluster: Cluster) -> None:
    check_usual(cluster, _WHAT, instead="kubernetes")
    for task in cluster.tasks:
        if task.slots != max(1, task.gpus) or (task.job == "ps" and task.gpus):
            why = f"the {task.slots} slots of {task.name}, which has {task.gpus} GPUs"
            raise cannot(cluster, _WHAT, why, "kubernetes")
    if len(cluster.job("evaluator")) > 1:
        raise cannot(cluster, _WHAT, "several evaluators, of which TensorFlow allows one", "kubernetes")
