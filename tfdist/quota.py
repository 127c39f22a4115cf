"""`quota_of`: the processor time that control groups allow a process, as containers set it, and what of it was used.

Version 2 of control groups has it in `cpu.max`, version 1 in `cpu.cfs_quota_us`. The group of the process and all its parents
limit it, so the smallest limit counts. A group that has used its time of a period (mostly 0.1 s) is held until the next one.
Linux: Documentation/scheduler/sched-bwc.rst, Documentation/admin-guide/cgroup-v2.rst.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
"""Where version 2 is mounted: alone, or beside version 1."""


@dataclass(frozen=True)
class Quota:
    """A limit.

    Attributes:
        cores: processor seconds per second.
        folder: the control group that has it.
        period: seconds after which the group gets processor time anew.
    """

    cores: float
    folder: Path
    period: float


@dataclass(frozen=True)
class Spent:
    """What the processes of a control group have used since it exists.

    Attributes:
        periods: periods in which one of them wanted to run.
        held: periods in which they were held, because the time of the period was used up.
        processor: processor seconds; None where its folder does not tell.
    """

    periods: int
    held: int
    processor: float | None = None


def quota_of(pid: int | str = "self", root: Path = Path("/")) -> Quota | None:
    """Returns the smallest limit of a process; None without one. `root` is the folder that contains `proc` and `sys`."""
    found = [limit for folder in _groups(pid, root) if (limit := _limit(folder)) is not None]
    return min(found, key=lambda limit: limit.cores, default=None)


def spent(folder: Path) -> Spent | None:
    """Returns what a control group has used; None if it does not tell."""
    try:
        lines = (folder / "cpu.stat").read_text(encoding="ascii").splitlines()
        values = {name: int(value) for name, value in (line.split() for line in lines)}
        periods, held = values["nr_periods"], values["nr_throttled"]
    except (OSError, ValueError, KeyError):
        return None
    if "usage_usec" in values:
        return Spent(periods, held, values["usage_usec"] / 1e6)
    try:  # Version 1, where both controllers are mounted at one place, as is usual.
        return Spent(periods, held, int((folder / "cpuacct.usage").read_text(encoding="ascii")) / 1e9)
    except (OSError, ValueError):
        return Spent(periods, held)


def _groups(pid: int | str, root: Path) -> Iterator[Path]:
    """Yields the folders of the groups of a process that may limit its processor time, with all their parents."""
    try:
        lines = (root / "proc" / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = ["0::/", "1:cpu:/"] if pid == "self" else []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            mounts: tuple[str, ...] = _MOUNTS
        elif "cpu" in controllers.split(","):
            mounts = tuple(dict.fromkeys(f"sys/fs/cgroup/{name}" for name in (controllers, "cpu", "cpu,cpuacct")))
        else:
            continue
        for mount in (root / each for each in mounts):
            inside = [part for part in path.split("/") if part]
            # A container may see its own group as the highest one, but still be told the path that it has outside.
            group = mount.joinpath(*inside) if ".." not in inside else mount
            if not group.is_dir():
                group = mount
            yield group
            while group != mount:
                group = group.parent
                yield group


def _limit(folder: Path) -> Quota | None:
    try:
        if (folder / "cpu.max").exists():
            words = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            words = [(folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period")]
        allowed, period = (float(word) for word in words)
    except (OSError, ValueError):  # `max`, without a limit, is no number.
        return None
    return Quota(allowed / period, folder, period / 1e6) if allowed > 0 and period > 0 else None
