"""Processor time of processes, from `/proc`, and the bytes that tasks send and receive, from the kernel's counters."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdist.launch.backends.local import sockets, use_probe


@dataclass(frozen=True)
class Sample:
    """What a process had used at a moment.

    Attributes:
        at: the moment, in seconds (`time.monotonic`).
        used: processor seconds of all its threads.
        waited: seconds for which its threads waited for a processor that others had.
        moved: bytes that it has sent and received over TCP; 0 where the kernel does not tell. Without a ps those of workers
            count, else those of ps alone: each byte goes from a worker to a ps, or back.
    """

    at: float
    used: float
    waited: float
    moved: int = 0


@dataclass
class ProcessorTime:
    """Samples of the tasks of a configuration, by the names of the tasks."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def look(self, at: float, pids: Mapping[str, int]) -> None:
        """Takes a sample of each task that runs."""
        counted = [name for name in pids if name.startswith("ps:")] or (list(pids) if len(pids) > 1 else [])
        known = sockets.connections(within=True) if counted else None
        moved = {each.inode: each.sent + each.received for each in known or ()}
        for name, pid in pids.items():
            if (used := use_probe.processor(pid)) is not None:
                here = sockets.inodes(pid) if name in counted and moved else ()
                sample = Sample(at, used, use_probe.waited(pid), sum(moved.get(inode, 0) for inode in here))
                self.samples.setdefault(name, []).append(sample)

    def between(self, name: str, begin: float, end: float) -> tuple[float, float]:
        """Returns the processor seconds of a task within a time, and the seconds for which its threads waited."""
        samples = self.samples.get(name, [])
        used, waited = (_at(samples, end, field) - _at(samples, begin, field) for field in ("used", "waited"))
        return used, waited

    def moved(self, name: str, begin: float, end: float) -> float:
        """Returns the bytes that a task has sent and received within a time; 0 if they are not known."""
        found = self.samples.get(name, [])
        return max(0.0, _at(found, end, "moved") - _at(found, begin, "moved"))


def _at(samples: list[Sample], moment: float, field: str) -> float:
    """Returns a value at a moment, interpolated between samples; at the ends that of the nearest."""
    if not samples:
        return 0.0
    after = next((number for number, sample in enumerate(samples) if sample.at >= moment), len(samples) - 1)
    before = max(0, after - 1)
    first, last = samples[before], samples[after]
    begin, end = float(getattr(first, field)), float(getattr(last, field))
    if last.at <= first.at:
        return end
    part = min(1.0, max(0.0, (moment - first.at) / (last.at - first.at)))
    return begin + part * (end - begin)
