"""Fields that several kinds of training jobs have: API version, replica specifications, numbers of processes."""

from tfdist.cluster import Task
from tfdist.dialects.parsing.document import MAX_TASKS, shown
from tfdist.dialects.parsing.node import Node
from tfdist.errors import nearest

# v1 before the training operator, and the betas, had the fields of runPolicy directly in spec.
POLICY = ("runPolicy", "cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit", "schedulingPolicy")


def need(node: Node, field: str) -> Node:
    """Returns a field. Raises ClusterError if it is missing."""
    found = node.get(field)
    if found is None:
        raise node.error(f"the field {field} is missing")
    return found


def check_version(job: Node, versions: tuple[str, ...]) -> None:
    """Raises ClusterError for an API version that is none of `versions`."""
    version = need(job, "apiVersion")
    if version.text() not in versions:
        hint = nearest(version.value, versions, otherwise="")
        kind = job.child("kind").value
        raise version.error(f"{shown(version.value)} is not an API of {kind}; they are {', '.join(versions)}{hint}")


def replica_specs(spec: Node, field: str, kinds: tuple[str, ...]) -> dict[str, Node]:
    """Returns replica specifications by type. The operators take the types in upper and lower case."""
    specs = need(spec, field)
    usual = {kind.lower(): kind for kind in kinds}
    by_kind: dict[str, Node] = {}
    for key, value in specs.mapping().items():
        kind = usual.get(key.lower()) if isinstance(key, str) else None
        if kind is None:
            hint = nearest(key, kinds)
            raise specs.error(f"{shown(key)} is not a replica type; the types are {', '.join(kinds)}{hint}")
        if kind in by_kind:
            raise specs.child(key).error(f"{kind} is given twice; keep one of them")
        if value is not None:
            by_kind[kind] = specs.child(key)
            by_kind[kind].check_keys(("replicas", "template", "restartPolicy"), "a replica specification")
    if not by_kind:
        raise specs.error(f"there are no replicas; expected some of {', '.join(kinds)}")
    return by_kind


def replica_count(replicas: Node) -> int:
    """Returns the number of replicas, by default one."""
    count = replicas.get("replicas")
    return 1 if count is None else count.count(0)


def pods_at_a_time(spec: Node) -> int:
    """Returns the pods of a Job, which all run at the same time: `parallelism`, by default 1, but no more than `completions`.

    Raises:
        ClusterError: if Kubernetes starts the last ones when others have ended.
    """
    given, wanted = spec.get("parallelism"), spec.get("completions")
    pods = 1 if given is None else given.count(0)
    if wanted is None:
        return pods
    if wanted.count(0) > pods > 0:
        raise (given or wanted).error(
            f"of {wanted.count(0)} pods (completions) Kubernetes starts {pods} at a time (parallelism, by default 1), and "
            "tasks of a cluster wait for each other; make both equal"
        )
    return min(pods, wanted.count(0))


def checked_total(node: Node, tasks: list[Task], count: int, slots: int) -> int:
    """Returns `count` after a check against the limit, before the tasks are made."""
    total = sum(task.slots for task in tasks) + count * max(1, slots)
    if total > MAX_TASKS:
        raise node.error(f"there would be {total} tasks or devices, more than {MAX_TASKS}; are the numbers right?")
    return count


def slots_of_node(processes: Node | None, devices: int) -> tuple[int, int]:
    """Returns slots and GPUs of a node: the given number of processes, else one for each GPU."""
    if processes is None or processes.value in ("gpu", "auto"):
        if processes is not None and not devices:
            raise processes.error(f"{processes.value!r} depends on the machine, and no GPUs are asked for; give a number")
        return max(1, devices), devices
    if processes.value == "cpu":
        raise processes.error("'cpu' depends on the machine; give the number of processes")
    slots = processes.count(1)
    return slots, min(slots, devices)
