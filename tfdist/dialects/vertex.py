"""Vertex AI: workerPoolSpecs of a custom job, and CLUSTER_SPEC, which each of its machines finds in its environment.

The rules are those of `google/cloud/aiplatform/v1/custom_job.proto` and of the page "Distributed training" of Vertex AI's
documentation; what the pools mean is in `vertex_pools`.
"""

import re
from collections.abc import Mapping
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.dialects.document import MAX_TASKS, Document, check_text, is_json, load, shown
from tfdist.dialects.node import Node, root
from tfdist.dialects.tf_config import split_address
from tfdist.dialects.vertex_pools import JOBS, PREFIX, Pool, field, has_reduction_server, job_pools, pools
from tfdist.errors import Source, nearest

NAME = "vertex"
EXAMPLE = "Vertex AI's custom job (workerPoolSpecs: [{machineSpec: ..., replicaCount: 1}, ...]) or CLUSTER_SPEC"
OPTIONS = ("image", "command")
IS_MAPPING = True
ALLOCATES = True
WORDS = frozenset(
    {
        *("workerPoolSpecs", "worker_pool_specs", "machineSpec", "machine_spec", "replicaCount", "replica_count"),
        *("jobSpec", "job_spec", "trialJobSpec", "trial_job_spec", "trainingTaskInputs", "training_task_inputs", "displayName"),
        *(
            "display_name",
            "containerSpec",
            "container_spec",
            "pythonPackageSpec",
            "python_package_spec",
            "diskSpec",
            "disk_spec",
        ),
        *("baseOutputDirectory", "base_output_directory", "machineType", "machine_type", "acceleratorType", "acceleratorCount"),
        *(f"{PREFIX}{position}" for position in range(len(JOBS))),
    }
)

_VARIABLE = "CLUSTER_SPEC"
_HOLDERS = ("jobSpec", "trialJobSpec", "trainingTaskInputs")
_POOL = re.compile(rf"{PREFIX}([0-3])", re.ASCII)


def looks_like(content: "str | Mapping[Any, Any]") -> bool:
    """Whether this has worker pools, or their names in place of the jobs of TF_CONFIG."""
    if isinstance(content, str):
        return re.search(r"^\s*[\"']?(workerPoolSpecs|worker_pool_specs)[\"']?\s*:", content, re.MULTILINE) is not None
    cluster = content.get("cluster")
    return _holder(content) is not None or (isinstance(cluster, Mapping) and any(map(_pool_number, cluster)))


def recognizes(environ: Mapping[str, str]) -> str | None:
    """CLUSTER_SPEC, where it has the worker pools of Vertex AI (AI Platform's variable of that name had other words)."""
    return _VARIABLE if f'"{PREFIX}0"' in environ.get(_VARIABLE, "") else None


def from_environ(environ: Mapping[str, str]) -> Cluster:
    """Reads CLUSTER_SPEC. Raises ClusterError for a bad one."""
    source = Source(NAME, _VARIABLE)
    text = check_text(environ[_VARIABLE], source)
    if not is_json(text):
        raise source.error('the variable does not hold a JSON object; expected {"cluster": {...}, "task": {...}}')
    return _cluster_spec(root(load(Document(_VARIABLE, text), source), NAME))


def parse(document: Document, **_: Any) -> Cluster:
    """Reads a CustomJob, CustomJobSpec, HyperparameterTuningJob or TrainingPipeline, in either spelling, or CLUSTER_SPEC."""
    top = root(document, NAME)
    if isinstance(top.mapping().get("cluster"), Mapping):
        return _cluster_spec(top)
    holder = _holder(top.mapping())
    spec = field(top, holder) if holder else top
    assert spec is not None
    specs = field(spec, "workerPoolSpecs")
    if specs is None:
        names = ("workerPoolSpecs", "worker_pool_specs", *_HOLDERS)
        hint = next((hint for hint in (nearest(key, names) for key in spec.mapping()) if hint), "")
        raise spec.error(f"the job has no workerPoolSpecs, which say what machines to train on{hint}")
    output = field(spec, "baseOutputDirectory")
    prefix = field(output, "outputUriPrefix") if output is not None else None
    tasks = [
        Task(job, index, slots=slots, gpus=gpus, machine_type=pool.machine_type)
        for job, pool in _checked(specs, pools(specs)).items()
        for slots, gpus in (_width(job, pool),)
        for index in range(pool.count)
    ]
    return Cluster(tuple(tasks), job_dir=prefix.text() if prefix is not None else None, source=top.source)


def write(cluster: Cluster, **options: Any) -> str:
    """Returns a CustomJobSpec for `gcloud ai custom-jobs create --config`; `options` are `image` and `command`.

    Raises:
        ClusterError: where Vertex AI has no words for the cluster, or an option is not one.
    """
    from tfdist.dialects.vertex_write import write_spec

    return write_spec(cluster, options)


def _holder(mapping: Mapping[Any, Any]) -> str | None:
    """The field of a larger resource that holds the CustomJobSpec; empty where the mapping is one itself, None for neither."""
    if "workerPoolSpecs" in mapping or "worker_pool_specs" in mapping:
        return ""
    for name in _HOLDERS:
        inner = mapping.get(name, mapping.get(re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", name)))
        if isinstance(inner, Mapping):
            return name
    return None


def _checked(specs: Node, found: dict[str, Pool]) -> dict[str, Pool]:
    total = sum(pool.count * max(1, pool.gpus) for pool in found.values())
    if total > MAX_TASKS:
        raise specs.error(f"there would be {total} machines or GPUs, more than {MAX_TASKS}; are the counts right?")
    return found


def _width(job: str, pool: Pool | None) -> tuple[int, int]:
    """Slots and GPUs of a task. A ps holds one shard, whatever GPUs its machine has."""
    gpus = 0 if job == "ps" or pool is None else pool.gpus
    return max(1, gpus), gpus


def _pool_number(name: object) -> bool:
    return isinstance(name, str) and _POOL.fullmatch(name) is not None


def _cluster_spec(top: Node) -> Cluster:
    spec, job = top.child("cluster"), top.mapping().get("job")
    machines, skips = job_pools(job), has_reduction_server(job)
    tasks: list[Task] = []
    for name in spec.mapping():
        if not _pool_number(name):
            names = [f"{PREFIX}{position}" for position in range(len(JOBS))]
            raise spec.error(f"{shown(name)} is not a worker pool; they are {', '.join(names)}{nearest(name, names)}")
        role = JOBS[int(name[-1])]
        if spec.value[name] is None or (role == "ps" and skips):
            continue
        slots, gpus = _width(role, machines.get(role))
        entries = list(spec.child(name).entries())
        if len(tasks) + len(entries) * slots > MAX_TASKS:
            raise spec.error(f"there are more than {MAX_TASKS} tasks or GPUs, which is more than tfdist supports")
        for index, entry in enumerate(entries):
            host, port = split_address(entry.value, entry.error)
            tasks.append(Task(role, index, host, port, slots, gpus))
    return Cluster(tuple(tasks), source=top.source, task=_task(top, tasks))


def _task(top: Node, tasks: list[Task]) -> tuple[str, int] | None:
    task = top.get("task")
    kind = task.get("type") if task is not None else None
    if task is None or kind is None:
        return None
    if not _pool_number(kind.value):
        raise kind.error(f"{shown(kind.value)} is not a worker pool; expected {PREFIX}0 to {PREFIX}{len(JOBS) - 1}")
    index = task.get("index")
    me = (JOBS[int(kind.value[-1])], 0 if index is None else index.count(0))
    if me not in [(entry.job, entry.index) for entry in tasks]:
        raise task.error(f"the task is {kind.value}:{me[1]}, and `cluster` has no such machine that trains")
    return me
