"""Which tasks of a running job a quota of processor time holds back, and what a larger one would give.

A quota is like a processor that is slower by the part of a core that it allows: its use is the processor time of the control
group, divided by what it allows. A task that is held at the end of a period and then waits for the network has a use below 1,
as a processor would that it does not always need.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.planner.predict import BINDS
from tfdist.planner.running import APART, WORTH, Binding, Running, listed, named

HELD = 0.1
"""A quota that held its group in a smaller part of its periods binds nothing."""

LARGER = 2
"""A quota this many times as large is proposed."""


@dataclass(frozen=True)
class Limit:
    """A quota that holds tasks.

    Attributes:
        tasks: the tasks of its control group.
        cores: processor seconds per second.
        share: part of it that is used, at most 1.
    """

    tasks: tuple[str, ...]
    cores: float
    share: float

    @property
    def resource(self) -> str:
        """`processor quota of worker 1`."""
        if len(self.tasks) > 1:
            return f"processor quota that {listed(self.tasks)} share"
        return f"processor quota of {named(self.tasks)[0]}"

    @property
    def sentence(self) -> str:
        """`worker 1 is at 100% of its processor quota of 0.5 cores`."""
        cores = f"{self.cores:.3g} core{'s' * (self.cores != 1)}"
        if len(self.tasks) > 1:
            return f"{listed(self.tasks)} are at {self.share:.0%} of the processor quota of {cores} that they share"
        return f"{named(self.tasks)[0]} is at {self.share:.0%} of its processor quota of {cores}"


def limits(job: Running) -> list[Limit]:
    """Returns the quotas that hold their tasks now and then."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, use in job.uses.items():
        if use.quota and use.quota_group is not None and (use.held or 0.0) >= HELD:
            groups.setdefault((job.hosts.get(name, ""), use.quota_group), []).append(name)
    found = []
    for names in groups.values():
        use = job.uses[names[0]]
        found.append(Limit(tuple(names), use.quota or 0.0, min(1.0, use.quota_used or 0.0)))
    return found


def of_workers(job: Running, all_limits: Sequence[Limit], other: float, unknown: tuple[str, ...]) -> Binding | None:
    """Returns the quotas that hold single workers, if they bind the job; else None.

    `other` is the busiest other resource that tasks share, from 0 to 1.
    """
    workers = job.workers
    alone = {limit.tasks[0]: limit for limit in all_limits if len(limit.tasks) == 1 and limit.tasks[0] in workers}
    worst = max((limit.share for limit in alone.values()), default=0.0)
    waits = job.strategy in ("multi_worker_mirrored", "hogwild") or job.is_together
    # A worker that does not wait for others is not slower for their quotas.
    busy = worst if waits else sum(limit.share for limit in alone.values()) / max(1, len(workers))
    if worst < BINDS or (other >= BINDS and busy <= other):
        return None
    bound = [limit for limit in alone.values() if limit.share >= max(BINDS, worst - APART)]
    cycles = [_cycle(job, name, alone[name] if alone.get(name) in bound else None, waits) for name in workers]
    times = 1 / max(cycles) if waits else sum(1 / cycle for cycle in cycles) / len(cycles)
    times = min(times, 1 / other) if other else times
    better = f"{LARGER} times the quota" if times >= WORTH else None
    resource, sentence = bound[0].resource, bound[0].sentence
    if len(bound) > 1:
        names = [limit.tasks[0] for limit in bound]
        least, most = min(limit.cores for limit in bound), max(limit.cores for limit in bound)
        cores = f"{least:.3g}" if least == most else f"{least:.3g} to {most:.3g}"
        resource = f"processor quotas of {listed(names)}"
        sentence = f"{listed(names)} are at {worst:.0%} of their processor quotas of {cores} core{'s' * (most != 1)}"
    why = "others wait for it" if waits and len(bound) == 1 and len(workers) > 1 else ""
    return Binding(resource, worst, better, times if better else None, why, unknown, sentence)


def _cycle(job: Running, name: str, limit: Limit | None, waits: bool) -> float:
    """Returns how long a cycle of a worker takes with the larger quota, in units of that of now."""
    use = job.uses[name]
    if limit is None:  # What it does by itself; and without waiting for others as long as now.
        return min(1.0, use.running + (use.sending or 0.0)) if waits else 1.0
    threads = (use.processor + use.waited) / use.running if use.running else 1.0
    most = max(limit.cores, min(LARGER * limit.cores, threads, use.cores))
    return 1 - limit.share + limit.share * limit.cores / most
