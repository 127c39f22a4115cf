"""Writes a CustomJobSpec of a cluster with a chief."""

from typing import Any

from tfdist.cluster import Cluster
from tfdist.dialects.cloudml.machines import MACHINES
from tfdist.dialects.cloudml.write import check, machine
from tfdist.dialects.vertex.custom_job import parse
from tfdist.dialects.vertex.pools import JOBS
from tfdist.dialects.writing.containers import PLACEHOLDER_IMAGE, dump, placeholder_note, program
from tfdist.dialects.writing.unsupported import check_read

_WHAT = "Vertex AI"


def write(cluster: Cluster, **options: Any) -> str:
    """Returns a CustomJobSpec for `gcloud ai custom-jobs create --config`. The options are `image` and `command` of `Program`.

    Raises:
        ClusterError: if Vertex AI has no words for the cluster, or an option is bad.
    """
    given = program(options)
    check(cluster, _WHAT)
    pools: list[dict[str, Any]] = []
    for name in JOBS:
        tasks = cluster.job(name)
        if tasks:
            container = {"imageUri": given.image or PLACEHOLDER_IMAGE, "command": given.words}
            spec = _machine_spec(*machine(cluster, tasks, _WHAT))
            pools.append({"machineSpec": spec, "replicaCount": len(tasks), "containerSpec": container})
        else:
            pools.append({})  # The position of a pool means its job.
    while not pools[-1]:
        pools.pop()
    job: dict[str, Any] = {"workerPoolSpecs": pools}
    if cluster.job_dir is not None:
        job["baseOutputDirectory"] = {"outputUriPrefix": cluster.job_dir}
    text = dump([job], placeholder_note(given, "on every machine"))
    check_read(cluster, _WHAT, text, parse)
    return text


def _machine_spec(shown: str, gpus: int) -> dict[str, Any]:
    """Returns the machineSpec of a machine type as shown. A legacy name of CloudML becomes its equivalent."""
    kind, _, accelerator = shown.partition("+")
    legacy = MACHINES.get(kind)
    spec: dict[str, Any] = {"machineType": legacy.equivalent if legacy else kind} if kind else {}
    number, _, model = accelerator.partition("x")
    if legacy and legacy.gpus:
        number, model = str(gpus), f"NVIDIA_TESLA_{legacy.gpu_model}"
    return spec | ({"acceleratorType": model, "acceleratorCount": int(number)} if model else {})
