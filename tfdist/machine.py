"""What there is on this machine: GPUs and processor cores, found without TensorFlow, which takes seconds to import."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tfdist.quota import quota_of

NVIDIA_SMI_SECONDS = 10.0
"""How long the answer of nvidia-smi may take: it starts the driver on a machine without its daemon."""


@dataclass(frozen=True)
class Installed:
    """The GPUs of this machine.

    Attributes:
        gpus: their ids, as the variable takes them: `0`, `1`, …; or MIG UUIDs.
        variable: the environment variable that says which of them a process sees.
    """

    gpus: tuple[str, ...] = ()
    variable: str = "CUDA_VISIBLE_DEVICES"


def boot() -> str:
    """Returns what tells this start of the machine, and this namespace of processes, from others.

    Raises OSError if there is no /proc.
    """
    started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{started} {os.readlink('/proc/self/ns/pid')}"


def process_fields(process: int | str) -> list[str]:
    """Returns the fields of /proc/PID/stat after the name, from the state on (proc(5)); none if there is no such process.

    `process` is a process id, or PID/task/TID for a thread.
    """
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


@functools.cache
def installed() -> Installed:
    """Returns the GPUs of this machine."""
    return find_gpus(Path("/"), _nvidia_smi)


def find_gpus(root: Path, nvidia_smi: Callable[[], str | None]) -> Installed:
    """Returns the GPUs that nvidia-smi lists, else those of NVIDIA's driver, else those of AMD's.

    Args:
        root: the folder that contains `proc` and `sys`.
        nvidia_smi: returns the output of `nvidia-smi -L`, or None without the command.
    """
    listed = nvidia_smi()
    if listed is not None and (gpus := _listed(listed)):
        return Installed(gpus)
    if number := len(_entries(root / "proc/driver/nvidia/gpus")):
        return Installed(_numbered(number))
    number = 0
    for node in _entries(root / "sys/class/kfd/kfd/topology/nodes"):
        try:
            properties = (node / "properties").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue  # A GPU that this container may not use.
        match = re.search(r"^simd_count (\d+)$", properties, re.MULTILINE)
        number += match is not None and int(match[1]) > 0  # Processors are nodes, too, without SIMD units.
    return Installed(_numbered(number), "HIP_VISIBLE_DEVICES") if number else Installed()


def cores(root: Path = Path("/")) -> int:
    """Returns the number of whole cores that this process may use, at least 1: by its affinity and its quota (quota.py)."""
    return max(1, int(capacity(root)))


def capacity(root: Path = Path("/")) -> float:
    """Returns the processor seconds per second that this process may use: its cores, or less with a smaller quota."""
    available = len(os.sched_getaffinity(0))
    quota = quota_of(root=root)
    return min(available, quota.cores) if quota else float(available)


def is_bound() -> bool:
    """Returns whether this process may use only some of the machine's cores, as a launcher may have decided for each task."""
    return len(os.sched_getaffinity(0)) < (os.cpu_count() or 1)


def _listed(text: str) -> tuple[str, ...]:
    """Returns the ids in the output of `nvidia-smi -L`: the number of each GPU, or the UUIDs of its parts (MIG)."""
    ids: list[list[str]] = []
    for line in text.splitlines():
        if match := re.match(r"GPU (\d+):", line):
            ids.append([match[1]])
        elif ids and (match := re.match(r"\s+MIG .*UUID: (MIG-[^)\s]+)\)", line)):
            ids[-1].append(match[1])
    return tuple(entry for gpu, *parts in ids for entry in parts or [gpu])


def _nvidia_smi() -> str | None:
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        return subprocess.run(
            [command, "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS
        ).stdout
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _numbered(number: int) -> tuple[str, ...]:
    return tuple(str(index) for index in range(number))
