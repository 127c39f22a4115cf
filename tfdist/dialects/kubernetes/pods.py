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


def object_name(entry: Node) -> str | None:
    """Returns `metadata.name`; None if `metadata.generateName` leaves it to Kubernetes. Raises ClusterError for a bad one."""
    metadata = entry.get("metadata")
    name = metadata.get("name") if metadata else None
    if name is None:
        if metadata is not None and metadata.get("generateName") is not None:
            return None
        raise (metadata or entry).error("the object has no metadata.name, which begins the names of its tasks")
    return _label(name)


def namespace(entry: Node) -> str:
    """Returns `metadata.namespace`. An empty one means `default` (Kubernetes API, ObjectMeta)."""
    metadata = entry.get("metadata")
    given = metadata.get("namespace") if metadata else None
    return _label(given) if given is not None and given.value != "" else "default"


def container(template: Node | None, name: str | None) -> Node | None:
    """Returns the container `name` of a pod template; None if the manifest leaves the containers out.

    Args:
        template: the pod template, or None.
        name: the container's name; None for the first container.

    Raises:
        ClusterError: if there are containers, but none with this name.
    """
    spec = template.get("spec") if template else None
    containers = spec.get("containers") if spec else None
    if containers is None:
        return None
    found = list(containers.entries())
    for entry in found:
        given = entry.get("name")
        if name is None or (given is not None and given.value == name):
            return entry
    if name is not None:
        raise containers.error(f"there is no container named {name}, which is the one that trains")
    return None


def port(entry: Node | None, name: str, default: int) -> int:
    """Returns the container port `name`; `default` if the container has no port with this name."""
    ports = entry.get("ports") if entry else None
    for candidate in ports.entries() if ports else ():
        given = candidate.get("name")
        if given is not None and given.value == name:
            number = candidate.get("containerPort")
            if number is None:
                raise candidate.error("the port has no containerPort")
            return number.count(1, 65535)
    return default


def gpus(holder: Node | None, field: str = "resources") -> int:
    """Returns the GPUs in `limits` of a container's resources, or if these name none, in `requests`."""
    resources = holder.get(field) if holder else None
    for part in ("limits", "requests"):
        amounts = resources.get(part) if resources else None
        if amounts is not None:
            counts = [
                amounts.child(kind).count(0, MAX_GPUS_PER_TASK) for kind in GPUS if amounts.mapping().get(kind) is not None
            ]
            if counts:
                return sum(counts)
    return 0


def _label(entry: Node) -> str:
    name = entry.text()
    if not is_label(name):
        raise entry.error(f"{name[:70]!r} is not a name that Kubernetes takes: at most 63 of a-z, 0-9 and -")
    return name
