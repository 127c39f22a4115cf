"""Vertex AI's worker pools: the job that the position of a pool means, its machines and their GPUs.

Sources: googleapis `google/cloud/aiplatform/v1/{custom_job,machine_resources}.proto`; Vertex AI documentation, "Distributed
training" and "Reduce training time with Reduction Server".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.dialects.cloudml.machines import MAX_GPUS, machine
from tfdist.dialects.cloudml.messages import snake
from tfdist.dialects.parsing.document import Document, is_json
from tfdist.dialects.parsing.load import load
from tfdist.dialects.parsing.node import Node, root
from tfdist.errors import ClusterError, Source, nearest

NAME = "vertex"

JOBS = ("chief", "worker", "ps", "evaluator")
"""The jobs of the pools, by position."""

PREFIX = "workerpool"
"""CLUSTER_SPEC names the pools workerpool0 to workerpool3."""

ACCELERATORS = (
    *("NVIDIA_TESLA_K80", "NVIDIA_TESLA_P100", "NVIDIA_TESLA_V100", "NVIDIA_TESLA_P4", "NVIDIA_TESLA_T4", "NVIDIA_TESLA_A100"),
    *("NVIDIA_A100_80GB", "NVIDIA_L4", "NVIDIA_H100_80GB", "NVIDIA_H100_MEGA_80GB", "NVIDIA_H200_141GB", "NVIDIA_B200"),
    *("TPU_V2", "TPU_V3", "TPU_V4_POD", "TPU_V5_LITEPOD"),
)
"""Accelerators, for suggestions. Vertex AI adds new ones, so every name of this form is valid."""

_ACCELERATOR = re.compile(r"(NVIDIA|TPU)(_[A-Z0-9]+)+", re.ASCII)
_REDUCTION_SERVER = re.compile(r"(.*/)?reductionserver([:@].*)?", re.ASCII)


@dataclass(frozen=True)
class Pool:
    """The machines of one pool: their number, GPUs of each, and type as shown (`n1-standard-8+2xNVIDIA_TESLA_T4`)."""

    count: int
    gpus: int
    machine_type: str | None


def field(node: Node, name: str) -> Node | None:
    """Returns a field in camel case, as JSON has it, or in snake case, as the Python client has it; None if it is missing."""
    return node.get(name, snake(name))


def width(job: str, pool: Pool | None) -> tuple[int, int]:
    """Returns slots and GPUs of a task. A ps holds one shard, also on a machine with GPUs."""
    gpus = 0 if job == "ps" or pool is None else pool.gpus
    return max(1, gpus), gpus


def pools(specs: Node) -> dict[str, Pool]:
    """Returns the pools that are not empty, by job. A pool of Google's Reduction Server does not count.

    Raises:
        ClusterError: for more than four pools, a first pool that is empty or not one machine, bad counts and accelerators.
    """
    by_job: dict[str, Pool] = {}
    # Google's tools wrap the one value of a repeated field.
    entries = [specs] if isinstance(specs.value, Mapping) and specs.value else list(specs.entries())
    for job, entry in zip(JOBS, entries, strict=False):
        pool = None if entry.value is None or not entry.mapping() else _pool(entry, job)
        if pool is not None and pool.count and not _is_reduction_server(entry):
            by_job[job] = pool
    if len(entries) > len(JOBS):
        raise entries[len(JOBS)].error(f"there are {len(entries)} worker pools; Vertex AI has {len(JOBS)}")
    if "chief" not in by_job:
        raise specs.error("the first worker pool is empty; it is the chief's, and the only one that is required")
    return by_job


def has_reduction_server(job: object) -> bool:
    """Returns whether the `job` of CLUSTER_SPEC or TF_CONFIG (a CustomJobSpec or its JSON) has a reduction server as third
    pool."""
    specs = _job_pools(job)
    entries = list(specs.entries()) if specs is not None and isinstance(specs.value, list | tuple) else []
    return len(entries) > 2 and isinstance(entries[2].value, Mapping) and _is_reduction_server(entries[2])


def job_pools(job: object) -> dict[str, Pool]:
    """Returns the pools of the `job` of CLUSTER_SPEC; empty if they cannot be read, because the addresses are elsewhere."""
    specs = _job_pools(job)
    try:
        return pools(specs) if specs is not None else {}
    except ClusterError:
        return {}


def _job_pools(job: object) -> Node | None:
    source = Source(NAME, "job")
    try:
        if isinstance(job, str) and is_json(job):
            job = load(Document("job", job), source).mapping
        return field(root(Document("job", mapping=job), NAME), "workerPoolSpecs") if isinstance(job, Mapping) else None
    except ClusterError:
        return None


def _pool(entry: Node, job: str) -> Pool:
    known = ("machineSpec", "replicaCount", "containerSpec", "pythonPackageSpec")
    entry.check_near((*known, "machine_spec", "replica_count", "container_spec", "python_package_spec"), "a worker pool")
    replicas = field(entry, "replicaCount")
    count = 1 if replicas is None else replicas.count(0)
    if job == "chief" and count != 1:
        raise (replicas or entry).error(f"the first worker pool has {count} replicas; it is the chief's and has exactly 1")
    spec = field(entry, "machineSpec")
    return Pool(count, *_machine(spec)) if spec is not None else Pool(count, 0, None)


def _machine(spec: Node) -> tuple[int, str | None]:
    given = field(spec, "machineType")
    kind = given.text() if given is not None else None
    model, count = field(spec, "acceleratorType"), field(spec, "acceleratorCount")
    name = model.text() if model is not None else "ACCELERATOR_TYPE_UNSPECIFIED"
    if name == "ACCELERATOR_TYPE_UNSPECIFIED":
        if count is not None and count.count(0):
            raise count.error("there is a count of accelerators, but no acceleratorType")
        built_in = machine(kind) if kind else None
        return (built_in.gpus if built_in and not built_in.legacy else 0), kind
    assert model is not None
    if not _ACCELERATOR.fullmatch(name):
        hint = nearest(name, ACCELERATORS, otherwise=f"; examples are {', '.join(ACCELERATORS[:6])}")
        raise model.error(f"{name[:60]!r} is not an accelerator{hint}")
    if count is None:
        raise spec.error("there is an acceleratorType without acceleratorCount; give the number per machine")
    number = count.count(1, MAX_GPUS if name.startswith("NVIDIA") else 10**6)
    # No strategy uses TPUs: they do not count as GPUs.
    return (number if name.startswith("NVIDIA") else 0), f"{kind or ''}+{number}x{name}"


def _is_reduction_server(entry: Node) -> bool:
    spec = entry.value.get("containerSpec", entry.value.get("container_spec"))
    image = spec.get("imageUri", spec.get("image_uri")) if isinstance(spec, Mapping) else None
    return isinstance(image, str) and _REDUCTION_SERVER.fullmatch(image) is not None
