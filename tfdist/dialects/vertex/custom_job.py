"""Reads the workerPoolSpecs of a custom job.

The rules are those of `google/cloud/aiplatform/v1/custom_job.proto` and of the page "Distributed training" of Vertex AI's
documentation.
"""

import re
from collections.abc import Mapping
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.dialects.cloudml.messages import snake
from tfdist.dialects.parsing.command_line import names
from tfdist.dialects.parsing.document import MAX_TASKS, Document
from tfdist.dialects.parsing.node import root
from tfdist.dialects.vertex.cluster_spec import is_pool, read_cluster_spec
from tfdist.dialects.vertex.pools import JOBS, NAME, PREFIX, field, pools, width
from tfdist.errors import nearest

_HOLDERS = ("jobSpec", "trialJobSpec", "trainingTaskInputs")
_OWN = {"workerPoolSpecs", "machineSpec", *_HOLDERS}
MARKS = frozenset({*_OWN, *map(snake, _OWN), *(f"{PREFIX}{position}" for position in range(len(JOBS)))})
"""Names that no other language has."""

_OTHERS = names("replicaCount displayName containerSpec pythonPackageSpec diskSpec baseOutputDirectory machineType")
WORDS = MARKS | _OTHERS | set(map(snake, _OTHERS)) | {"acceleratorType", "acceleratorCount"}


def looks_like(content: "str | Mapping[Any, Any]") -> bool:
    """Returns whether this has worker pools, or their names in place of the jobs of TF_CONFIG."""
    if isinstance(content, str):
        return re.search(r"^\s*[\"']?(workerPoolSpecs|worker_pool_specs)[\"']?\s*:", content, re.MULTILINE) is not None
    cluster = content.get("cluster")
    return _holder(content) is not None or (isinstance(cluster, Mapping) and any(map(is_pool, cluster)))


def from_object(value: object) -> dict[str, object] | None:
    """Returns the job of a list of worker pools, as Google's Python library takes it, `worker_pool_specs=[...]`; else None."""
    pools_given = value if isinstance(value, list | tuple) else []
    is_list = all(isinstance(pool, Mapping) for pool in pools_given)
    has_machine = is_list and any(not {"machine_spec", "machineSpec"}.isdisjoint(pool) for pool in pools_given)
    return {"workerPoolSpecs": list(pools_given)} if has_machine else None


def parse(document: Document) -> Cluster:
    """Reads a CustomJob, CustomJobSpec, HyperparameterTuningJob or TrainingPipeline, in either spelling, or CLUSTER_SPEC.

    Raises:
        ClusterError: for a job without worker pools, and for bad pools.
    """
    top = root(document, NAME)
    if isinstance(top.mapping().get("cluster"), Mapping):
        return read_cluster_spec(top)
    holder = _holder(top.mapping())
    spec = field(top, holder) if holder else top
    assert spec is not None
    specs = field(spec, "workerPoolSpecs")
    if specs is None:
        known = ("workerPoolSpecs", "worker_pool_specs", *_HOLDERS)
        hint = next((hint for hint in (nearest(key, known) for key in spec.mapping()) if hint), "")
        raise spec.error(f"the job has no workerPoolSpecs, which describe the machines{hint}")
    output = field(spec, "baseOutputDirectory")
    prefix = field(output, "outputUriPrefix") if output is not None else None
    found = pools(specs)
    total = sum(pool.count * max(1, pool.gpus) for pool in found.values())
    if total > MAX_TASKS:
        raise specs.error(f"there would be {total} machines or GPUs, more than {MAX_TASKS}; are the counts right?")
    tasks = [
        Task(job, index, slots=slots, gpus=gpus, machine_type=pool.machine_type)
        for job, pool in found.items()
        for slots, gpus in (width(job, pool),)
        for index in range(pool.count)
    ]
    return Cluster(tuple(tasks), job_dir=prefix.text() if prefix is not None else None, source=top.source)


def _holder(mapping: Mapping[Any, Any]) -> str | None:
    """Returns the field that contains the CustomJobSpec; empty if the mapping is one itself, None if there is none."""
    if "workerPoolSpecs" in mapping or "worker_pool_specs" in mapping:
        return ""
    for name in _HOLDERS:
        inner = mapping.get(name, mapping.get(snake(name)))
        if isinstance(inner, Mapping):
            return name
    return None
