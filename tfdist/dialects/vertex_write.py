"""Writing the Vertex AI dialect: a CustomJobSpec of a cluster with one chief."""

from collections.abc import Mapping
from typing import Any

from tfdist.cluster import Cluster
from tfdist.dialects import cloudml_write
from tfdist.dialects.cloudml_fields import MACHINES
from tfdist.dialects.kubernetes_write import PLACEHOLDER_IMAGE, dump, placeholder_note, program
from tfdist.dialects.vertex_pools import JOBS

_WHAT = "Vertex AI"


def write_spec(cluster: Cluster, options: Mapping[str, Any]) -> str:
    """Returns the specification as YAML; see `vertex.write`."""
    given = program(options)
    cloudml_write.check(cluster, _WHAT)
    pools: list[dict[str, Any]] = []
    for job in JOBS:
        tasks = cluster.job(job)
        if tasks:
            container = {"imageUri": given.image or PLACEHOLDER_IMAGE, "command": given.words}
            machine = _machine(*cloudml_write.machine(cluster, tasks, _WHAT))
            pools.append({"machineSpec": machine, "replicaCount": len(tasks), "containerSpec": container})
        else:
            pools.append({})  # Their position says what the pools are.
    while not pools[-1]:
        pools.pop()
    spec: dict[str, Any] = {"workerPoolSpecs": pools}
    if cluster.job_dir is not None:
        spec["baseOutputDirectory"] = {"outputUriPrefix": cluster.job_dir}
    return dump([spec], placeholder_note(given, "on every machine"))


def _machine(shown: str, gpus: int) -> dict[str, Any]:
    """The machineSpec of a machine as CloudML and Vertex AI show it, legacy names of CloudML by their equivalent."""
    kind, _, accelerator = shown.partition("+")
    legacy = MACHINES.get(kind)
    spec: dict[str, Any] = {"machineType": legacy.equivalent if legacy else kind} if kind else {}
    number, _, model = accelerator.partition("x")
    if legacy and legacy.gpus:
        number, model = str(gpus), f"NVIDIA_TESLA_{legacy.gpu_model}"
    return spec | ({"acceleratorType": model, "acceleratorCount": int(number)} if model else {})
