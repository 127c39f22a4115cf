"""What the readers of all kinds of objects share: names, containers, ports and GPUs."""

from tfdist.dialects.parsing.document import MAX_GPUS_PER_TASK
from tfdist.dialects.parsing.node import Node
from tfdist.dialects.writing.containers import is_label

GPUS = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "alpha.kubernetes.io/nvidia-gpu",
)
"""Extended resources that are whole GPUs, as the makers' device plugins name them."""

TPUS = ("google.com/tpu", "cloud-tpus.google.com/v3", "cloud-tpus.google.com/v2")
"""Extended resources that are TPUs."""


def object_name(entry: Node) -> str | None:
    """Returns `metadata.name`; None if `metadata.generateName` leaves it to Kubernetes. Raises ClusterError for a bad one."""
    name = entry.find("metadata", "name")
    if name is None:
        if entry.find("metadata", "generateName") is not None:
            return None
        raise (entry.get("metadata") or entry).error("the object has no metadata.name, which begins the names of its tasks")
    return _label(name)


def namespace(entry: Node) -> str:
    """Returns `metadata.namespace`. An empty one means `default` (Kubernetes API, ObjectMeta)."""
    given = entry.find("metadata", "namespace")
    return _label(given) if given is not None and given.value != "" else "default"


def container(template: Node | None, name: str | None) -> Node | None:
    """Returns the container `name` of a pod template; None if the manifest leaves the containers out.

    Args:
        template: the pod template, or None.
        name: the container's name; None for the first that asks for GPUs or TPUs, else the first. Others, such as the daemon
            of a network, may precede the one that trains.

    Raises:
        ClusterError: if there are containers, but none with this name.
    """
    containers = template.find("spec", "containers") if template else None
    if containers is None:
        return None
    entries = list(containers.entries())
    if name is None:
        return next((entry for entry in entries if tpu(entry) or gpus(entry)), entries[0] if entries else None)
    for entry in entries:
        if entry.child("name").value == name:
            return entry
    raise containers.error(f"there is no container named {name}, which is the one that trains")


def port(entry: Node | None, name: str, default: int) -> int:
    """Returns the container port `name`; `default` if the container has no port with this name."""
    ports = entry.get("ports") if entry else None
    for candidate in ports.entries() if ports else ():
        if candidate.child("name").value == name:
            number = candidate.get("containerPort")
            if number is None:
                raise candidate.error("the port has no containerPort")
            return number.count(1, 65535)
    return default


def gpus(holder: Node | None, field: str = "resources") -> int:
    """Returns the GPUs in `limits` of a container's resources, or if these name none, in `requests`."""
    for part in ("limits", "requests"):
        amounts = holder.find(field, part) if holder else None
        if amounts is not None:
            counts = [
                amounts.child(kind).count(0, MAX_GPUS_PER_TASK) for kind in GPUS if amounts.mapping().get(kind) is not None
            ]
            if counts:
                return sum(counts)
    return 0


def tpu(holder: Node | None) -> Node | None:
    """Returns the TPUs that a container asks for; None if it asks for none."""
    amounts = [holder.find("resources", part) for part in ("limits", "requests")] if holder else []
    asked = ((entry, kind) for entry in amounts if entry is not None for kind in TPUS)
    return next((entry.child(kind) for entry, kind in asked if entry.mapping().get(kind) is not None), None)


def _label(entry: Node) -> str:
    name = entry.text()
    if not is_label(name):
        raise entry.error(f"{name[:70]!r} is not a name that Kubernetes takes: at most 63 of a-z, 0-9 and -")
    return name
