"""CLUSTER_SPEC, which every machine of a custom job finds in its environment.

Source: the page "Distributed training" of Vertex AI's documentation.
"""

import re
from collections.abc import Mapping

from tfdist.cluster import Cluster, Task
from tfdist.dialects.parsing.addresses import tensorflow_address
from tfdist.dialects.parsing.document import MAX_TASKS, shown
from tfdist.dialects.parsing.load import load_variable
from tfdist.dialects.parsing.node import Node, root
from tfdist.dialects.vertex.pools import JOBS, NAME, PREFIX, has_reduction_server, job_pools, width
from tfdist.errors import Source, nearest

_VARIABLE = "CLUSTER_SPEC"
_POOL = re.compile(rf"{PREFIX}([0-3])", re.ASCII)


def recognizes(environ: Mapping[str, str]) -> str | None:
    """Returns CLUSTER_SPEC if it has the worker pools of Vertex AI; AI Platform's variable of that name had other words."""
    return _VARIABLE if f'"{PREFIX}0"' in environ.get(_VARIABLE, "") else None


def from_environ(environ: Mapping[str, str]) -> Cluster:
    """Reads CLUSTER_SPEC. Raises ClusterError for a bad one."""
    document = load_variable(environ, Source(NAME, _VARIABLE), '; expected {"cluster": {...}, "task": {...}}')
    return read_cluster_spec(root(document, NAME))


def is_pool(name: object) -> bool:
    """Returns whether `name` is the name of a worker pool."""
    return isinstance(name, str) and _POOL.fullmatch(name) is not None


def read_cluster_spec(top: Node) -> Cluster:
    """Returns the cluster of CLUSTER_SPEC. Raises ClusterError for a bad one."""
    spec, job = top.child("cluster"), top.mapping().get("job")
    machines, skips = job_pools(job), has_reduction_server(job)
    tasks: list[Task] = []
    for name in spec.mapping():
        if not is_pool(name):
            names = [f"{PREFIX}{position}" for position in range(len(JOBS))]
            raise spec.error(f"{shown(name)} is not a worker pool; they are {', '.join(names)}{nearest(name, names)}")
        role = JOBS[int(name[-1])]
        if spec.value[name] is None or (role == "ps" and skips):
            continue
        slots, gpus = width(role, machines.get(role))
        entries = list(spec.child(name).entries())
        if len(tasks) + len(entries) * slots > MAX_TASKS:
            raise spec.error(f"there are more than {MAX_TASKS} tasks or GPUs, which is more than tfdist supports")
        for index, entry in enumerate(entries):
            host, port = tensorflow_address(entry.value, entry.error)
            tasks.append(Task(role, index, host, port, slots, gpus))
    return Cluster(tuple(tasks), source=top.source, task=_task(top, tasks))


def _task(top: Node, tasks: list[Task]) -> tuple[str, int] | None:
    task, kind = top.get("task"), top.find("task", "type")
    if task is None or kind is None:
        return None
    if not is_pool(kind.value):
        raise kind.error(f"{shown(kind.value)} is not a worker pool; expected {PREFIX}0 to {PREFIX}{len(JOBS) - 1}")
    index = task.get("index")
    me = (JOBS[int(kind.value[-1])], 0 if index is None else index.count(0))
    if me not in [(entry.job, entry.index) for entry in tasks]:
        raise task.error(f"the task is {kind.value}:{me[1]}, and `cluster` has no such machine that trains")
    return me
