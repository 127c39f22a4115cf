"""`UseProbe`: what the tasks of this machine use of its processors and its link, from `/proc` and the kernel's sockets.

Counters say how much was used. Whether a thread runs, or data waits to be sent, is looked up several times a second: the part
of the samples in which it was so is the part of the time.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tfdist import machine
from tfdist.launch.backends.local import sockets
from tfdist.launch.jobs.events import Used
from tfdist.planner.use import Use
from tfdist.quota import Quota, Spent, quota_of, spent

SAMPLE_SECONDS = 0.2
MOST_COST = 0.01
"""With many threads the samples are rarer, so that they take at most this part of a core."""

REPORT_SECONDS = 2.0
WINDOW_SECONDS = 8.0
"""What is reported is the mean over this time."""

LEAST_SECONDS = 2.0
LEAST_SAMPLES = 8
"""Fewer tell nothing."""

RECEIVER_LIMITED = 0.5
"""Data that waits because the other end took none for this part of the time does not wait for the link."""

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class _Sample:
    """The use of a task at a moment, in seconds. Counters are those since its start, in seconds or bytes."""

    at: float
    processor: float
    waited: float
    machine_busy: float
    machine_all: float
    is_running: bool
    is_sending: bool | None = None
    sent: int = 0
    received: int = 0
    quota: Spent | None = None


@dataclass
class _Task:
    """A task, with its samples."""

    pid: int
    cores: set[int]
    is_here: bool
    quota: Quota | None = None
    samples: deque[_Sample] = field(default_factory=deque)
    inodes: set[int] = field(default_factory=set)
    limited: dict[int, int] = field(default_factory=dict)
    counted: dict[int, tuple[int, int]] = field(default_factory=dict)
    sent: int = 0
    received: int = 0


class UseProbe:
    """Takes samples of the tasks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = self._reported_at = 0.0
        self._pause = SAMPLE_SECONDS
        self._tasks: dict[str, _Task] = {}

    def events(self, pids: Mapping[str, int]) -> list[Used]:
        """Returns what the tasks use, whose process ids are `pids`; nothing if it is not yet time."""
        now = self._clock()
        if now - self._looked_at < self._pause:
            return []
        begin = time.thread_time()
        elapsed, self._looked_at = now - self._looked_at, now
        reports = now - self._reported_at >= REPORT_SECONDS
        self._tasks = {name: task for name, task in self._tasks.items() if pids.get(name) == task.pid}
        found = sockets.connections() if pids else None
        for name, pid in pids.items():
            task = self._tasks.get(name)
            if task is None:
                task = self._tasks[name] = _Task(pid, _cores(pid), _shares_network(pid), quota_of(pid))
            if reports:
                task.cores = _cores(pid)  # The program may choose its cores.
                if (quota := quota_of(pid)) != task.quota:  # And somebody else its quota: figures of before tell nothing of it.
                    task.quota = quota
                    task.samples.clear()
            self._add_sample(task, now, elapsed, found if task.is_here else None, reports)
        self._pause = max(SAMPLE_SECONDS, (time.thread_time() - begin) / MOST_COST)
        if not reports:
            return []
        self._reported_at = now
        return [Used(name, use) for name, use in self._uses().items()]

    def _uses(self) -> dict[str, Use]:
        # Two tasks that keep to a core each do not share one.
        together: float = len(set().union(*(task.cores for task in self._tasks.values())))
        limits = {task.quota for task in self._tasks.values()}
        if len(limits) == 1 and (common := limits.pop()) is not None:
            together = min(together, common.cores)
        uses: dict[str, Use] = {}
        for name, task in self._tasks.items():
            if (use := use_of(task.samples, len(task.cores), together, task.quota)) is not None:
                uses[name] = use
        for name, use in uses.items():
            if use.quota and use.quota_used is None:  # The group does not tell.
                members = [each for each in uses.values() if each.quota_group == use.quota_group]
                used = max(sum(each.processor for each in members) / use.quota, _held(self._tasks[name]))
                uses[name] = replace(use, quota_used=used)
        return uses

    def _add_sample(
        self, task: _Task, now: float, elapsed: float, connections: list[sockets.Connection] | None, counts: bool
    ) -> None:
        used = processor(task.pid)
        if used is None:
            return
        if connections is not None and (counts or not task.inodes):  # To list them takes longer than the rest.
            task.inodes = sockets.inodes(task.pid)
        before = task.samples[-1].waited if task.samples else 0.0
        sample = _Sample(
            now, used, waited(task.pid) if counts or not task.samples else before, *_machine(), _is_running(task.pid)
        )
        sample.quota = spent(task.quota.folder) if task.quota else None
        if connections is not None:
            sample.is_sending = _count(task, connections, elapsed)
            sample.sent, sample.received = task.sent, task.received
        task.samples.append(sample)
        while len(task.samples) > LEAST_SAMPLES and now - task.samples[1].at > WINDOW_SECONDS:
            task.samples.popleft()


def use_of(samples: "deque[_Sample]", cores: int, together: float | None = None, quota: Quota | None = None) -> Use | None:
    """Returns the use between the first and the last sample; None after too few. The task may use `cores`, and all of this
    machine may use `together`."""
    if len(samples) < LEAST_SAMPLES or samples[-1].at - samples[0].at < LEAST_SECONDS:
        return None
    first, last, later = samples[0], samples[-1], list(samples)[1:]
    seconds = last.at - first.at
    capacity = last.machine_all - first.machine_all
    knows_links = all(sample.is_sending is not None for sample in samples)
    processor = (last.processor - first.processor) / seconds
    # Few samples may miss short work: it takes at least this part of the time, on all cores at once.
    least = min(1.0, processor / max(1, cores))
    use = Use(
        seconds,
        processor,
        max(0.0, last.waited - first.waited) / seconds,
        max(least, sum(sample.is_running for sample in later) / len(later)),
        cores,
        min(1.0, (last.machine_busy - first.machine_busy) / capacity) if capacity > 0 else 0.0,
        sum(bool(sample.is_sending) for sample in later) / len(later) if knows_links else None,
        (last.sent - first.sent) / seconds if knows_links else None,
        (last.received - first.received) / seconds if knows_links else None,
        together,
    )
    if quota is None or first.quota is None or last.quota is None:
        return use
    periods, held = last.quota.periods - first.quota.periods, last.quota.held - first.quota.held
    used = None
    if first.quota.processor is not None and last.quota.processor is not None:
        used = (last.quota.processor - first.quota.processor) / seconds / quota.cores
    held_part = held / periods if periods > 0 else 0.0
    return replace(use, quota=quota.cores, quota_used=used, held=held_part, quota_group=str(quota.folder))


def _held(task: _Task) -> float:
    """Returns the part of the time in which the group of a task had used up its quota, maybe by processes that are no tasks."""
    first, last = task.samples[0], task.samples[-1]
    if task.quota is None or first.quota is None or last.quota is None:
        return 0.0
    return min(1.0, (last.quota.held - first.quota.held) * task.quota.period / (last.at - first.at))


def _count(task: _Task, connections: list[sockets.Connection], elapsed: float) -> bool:
    """Adds what the connections of a task have carried since the last sample; returns whether data waits for the link."""
    is_sending = False
    counted, limited = {}, {}
    for connection in connections:
        if connection.inode not in task.inodes:
            continue
        # What a connection had carried before it was first seen does not count.
        sent, received = task.counted.get(connection.inode, (connection.sent, connection.received))
        task.sent += max(0, connection.sent - sent)
        task.received += max(0, connection.received - received)
        counted[connection.inode] = connection.sent, connection.received
        limited[connection.inode] = connection.receiver_limited
        stopped = (connection.receiver_limited - task.limited.get(connection.inode, connection.receiver_limited)) / 1e6
        is_sending = is_sending or (connection.waiting > 0 and stopped < RECEIVER_LIMITED * elapsed)
    task.counted, task.limited = counted, limited
    return is_sending


def processor(pid: int) -> float | None:
    """Returns the processor seconds of all threads of a process; None if there is no such process."""
    fields = machine.process_fields(pid)
    return (int(fields[11]) + int(fields[12])) / _TICK if fields else None


def _is_running(pid: int) -> bool:
    return any(machine.process_fields(f"{pid}/task/{thread}")[:1] == ["R"] for thread in _threads(pid))


def waited(pid: int) -> float:
    """Returns how long the threads of a process waited for a core; 0 where the kernel does not count it."""
    total = 0
    for thread in _threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return total / 1e9


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _machine() -> tuple[float, float]:
    """Returns for how long the cores of this machine were in use, and for how long they could have been."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            times = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0.0, 0.0
    idle = sum(times[3:5])  # idle and iowait
    return (sum(times) - idle) / _TICK, sum(times) / _TICK


def _cores(pid: int) -> set[int]:
    """Returns the numbers of the cores that a process may use."""
    try:
        return os.sched_getaffinity(pid)
    except OSError:
        return set(range(machine.cores()))


def _shares_network(pid: int) -> bool:
    """Returns whether a process sees the connections that this one sees."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:
        return False
