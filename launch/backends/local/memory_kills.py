"""Whether the kernel killed a process because memory ran out. Its SIGKILL looks like anyone's.

The kernel counts such kills before it sends the signal: for a control group in `memory.events` (cgroup v2) or
`memory.oom_control` (v1), for the whole machine in `/proc/vmstat`. Its log names the process.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LOG_BYTES = 8192


@dataclass(frozen=True)
class MemoryKills:
    """Kills for lack of memory so far.

    Attributes:
        group: in the control group of this process and those below it; None if that cannot be read.
        machine: on the whole machine; None if that cannot be read.
    """

    group: int | None
    machine: int | None


def count(root: Path = Path("/")) -> MemoryKills:
    """Returns the kills so far. `root` is the folder that contains `proc` and `sys`."""
    group = next((number for path in _group_files(root) if (number := _number(path)) is not None), None)
    return MemoryKills(group, _number(root / "proc/vmstat"))


def explanation(pid: int, before: MemoryKills, now: MemoryKills, kernel_log: str | None) -> str:
    """Returns why a process was killed, as the end of a sentence; empty if memory was not the reason.

    `kernel_log` is None if it cannot be read.
    """
    is_counted = before.machine is not None and now.machine is not None
    if is_counted and before.machine == now.machine:
        return ""
    if kernel_log and re.search(rf"[Oo]ut of memory.*: Killed process {pid} ", kernel_log):
        return "because memory ran out (the kernel's log names it)"
    if before.group is not None and now.group is not None and now.group > before.group:
        return "because the memory of its control group ran out"
    if is_counted:
        return "probably because memory ran out: the kernel has killed a process of this machine for that"
    return "by a user, or probably by the kernel because memory ran out: its count of such kills cannot be read here"


def kernel_log() -> str | None:
    """Returns the kernel's messages, or None without the right to read them."""
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    messages = []
    try:
        while True:
            try:
                messages.append(os.read(descriptor, _LOG_BYTES).decode("utf-8", "replace"))
            except BrokenPipeError:
                pass  # The kernel has overwritten some; the next read goes on behind them.
    except OSError:  # BlockingIOError: that was the last one.
        return "".join(messages) or None
    finally:
        os.close(descriptor)


def _group_files(root: Path) -> Iterator[Path]:
    """Yields the files in which the count of this process' control group may be."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # In a container the group of the process may be mounted as the root.
        for folder in (path.strip("/"), ""):
            if not controllers:
                yield root / "sys/fs/cgroup" / folder / "memory.events"
            elif "memory" in controllers.split(","):
                yield root / "sys/fs/cgroup/memory" / folder / "memory.oom_control"


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None
