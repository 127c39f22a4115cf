"""What all kinds of Kubernetes objects share when they are read: names, containers, ports and GPUs."""

import re

from tfdist.dialects.node import Node

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)

GPUS = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "alpha.kubernetes.io/nvidia-gpu",
)
"""Extended resources that are whole GPUs, as the device plugins of the makers name them."""

MAX_GPUS = 1024
"""Most GPUs of one pod; more is a mistyped number."""


def is_label(name: str) -> bool:
    """Whether Kubernetes takes `name` for an object: a DNS label of RFC 1123, at most 63 characters."""
    return _LABEL.fullmatch(name) is not None


def object_name(entry: Node) -> str | None:
    """`metadata.name`, or None where `metadata.generateName` leaves it to Kubernetes. Raises ClusterError for a bad one."""
    metadata = entry.get("metadata")
    name = metadata.get("name") if metadata else None
    if name is None:
        if metadata is not None and metadata.get("generateName") is not None:
            return None
        raise (metadata or entry).error("the object has no metadata.name, of which the names of its tasks are made")
    return _label(name)


def namespace(entry: Node) -> str:
    """`metadata.namespace`; an empty one is equivalent to `default` (Kubernetes API, ObjectMeta)."""
    metadata = entry.get("metadata")
    given = metadata.get("namespace") if metadata else None
    return _label(given) if given is not None and given.value != "" else "default"


def container(template: Node | None, name: str | None) -> Node | None:
    """The container called `name` of a pod template (None: the first); None where the manifest leaves the containers out.

    Raises:
        ClusterError: where there are containers, but none of this name.
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
    """The container port called `name`, or `default` where the container has none of that name."""
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
    """GPUs in `limits` (or, where they have none, `requests`) of the resources of a container."""
    resources = holder.get(field) if holder else None
    for part in ("limits", "requests"):
        amounts = resources.get(part) if resources else None
        if amounts is not None:
            counts = [amounts.child(kind).count(0, MAX_GPUS) for kind in GPUS if amounts.mapping().get(kind) is not None]
            if counts:
                return sum(counts)
    return 0


def _label(entry: Node) -> str:
    name = entry.text()
    if not is_label(name):
        raise entry.error(f"{name[:70]!r} is not a name that Kubernetes takes: at most 63 of a-z, 0-9 and -")
    return name
