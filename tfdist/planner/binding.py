"""`explain`: which resource binds a running job, and what would train faster, from what its tasks use.

A resource that is busy for a part of the time costs each worker that part of its cycle, divided by the workers that share it.
With these demands the model of the predictions (predict.py, queues.py) gives the time of a cycle with other numbers of ps and
workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tfdist.planner.measurement import Variable
from tfdist.planner.placement import evenly, whole_and_split
from tfdist.planner.predict import BINDS, combined
from tfdist.planner.queues import cycle as queued
from tfdist.planner.recommend import CLOSE
from tfdist.planner.use import Use

FULL = 0.9
"""From this part of its cores on, the tasks of a machine wait for each other, or for other programs."""

APART = 0.2
"""A worker that runs for so much more of the time than the others is the one for which they wait."""

WORTH = 1.1
"""Less than this many times the speed is not worth saying."""

MOST = 64
"""No more ps are proposed."""


@dataclass(frozen=True)
class Running:
    """A job that trains.

    Attributes:
        strategy: its strategy.
        uses: what its tasks use, by `job:index`; those that are not known are missing.
        tasks: `job:index` of all tasks that train or serve.
        hosts: the host of each task.
        variables: the trainable variables; empty if not known.
        is_together: whether all workers make each step together.
    """

    strategy: str
    uses: Mapping[str, Use]
    tasks: Sequence[str]
    hosts: Mapping[str, str] = field(default_factory=dict)
    variables: Sequence[Variable] = ()
    is_together: bool = False


@dataclass(frozen=True)
class Binding:
    """What binds.

    Attributes:
        resource: what it is: `link of ps 1`; None if none is busy enough, or not known.
        utilization: part of the time for which it is busy, from 0 to 1; None without a resource.
        better: what would train faster: `3 ps`; None if nothing that can be computed.
        times: how many times the speed that would give.
        why: the rest of a sentence: what is known besides, or why nothing is.
        unknown: what is not known, in words.
    """

    resource: str | None
    utilization: float | None = None
    better: str | None = None
    times: float | None = None
    why: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """A sentence."""
        if self.resource is None:
            text = self.why
        else:
            text = f"{self.resource}, busy for {self.utilization:.0%} of the time" + (f" ({self.why})" if self.why else "")
            if self.better is not None:
                text += f": {self.better} would give {self.times:.1f} times the speed"
        return "; ".join([text, *(f"not known: {each}" for each in self.unknown)])

    def as_json(self) -> dict[str, Any]:
        """Returns the attributes and `text`."""
        return asdict(self) | {"unknown": list(self.unknown), "text": self.text}


@dataclass(frozen=True)
class _Busy:
    share: float
    resource: str
    task: str
    kind: str


def explain(job: Running) -> Binding:
    """Returns what binds a job."""
    missing = [name for name in job.tasks if name not in job.uses]
    if len(missing) == len(job.tasks):
        return Binding(None, why="not known: nobody reports what the tasks use of processors and links")
    unknown = tuple([f"what {', '.join(_named(missing))} use{'s' * (len(missing) == 1)}"] if missing else [])
    silent = [name for name in job.tasks if name in job.uses and job.uses[name].sending is None]
    unknown += tuple([f"the link{'s' * (len(silent) > 1)} of {', '.join(_named(silent))}"] if silent else [])
    shared = sorted(_shared(job), key=lambda each: -each.share)
    if shared and shared[0].share >= BINDS:
        return _of_shared(job, shared[0], unknown)
    return _of_workers(job, unknown)


def _shared(job: Running) -> list[_Busy]:
    """Returns how busy the resources are that several tasks use."""
    found, full = [], set()
    for host in dict.fromkeys(job.hosts.get(name, "") for name in job.uses):
        here = [name for name in job.uses if job.hosts.get(name, "") == host]
        use = job.uses[here[0]]
        cores = max(job.uses[name].cores_of_all or job.uses[name].cores for name in here)
        own = sum(job.uses[name].processor for name in here) / cores
        share = min(1.0, max(own, use.machine))
        if share >= FULL and (len(here) > 1 or own < share / 2):
            full |= set(here)
            what = f"cores that {_listed(here)} share" if len(here) > 1 else f"cores of {_named(here)[0]}"
            if own < share / 2:
                what = f"cores of {host or 'a machine'}, most of which other programs use"
            found.append(_Busy(share, what, here[0], "cores"))
    for name, use in job.uses.items():
        if name.startswith("worker:"):
            continue
        is_chief = name.startswith("chief:")
        if job.strategy in ("parameter_server", "hogwild"):
            if name not in full:
                # Python runs on one core at a time.
                cores = 1 if is_chief else use.cores
                share = min(use.running, (use.processor + use.waited) / cores)
                found.append(
                    _Busy(share, "chief processor" if is_chief else f"processor of {_named([name])[0]}", name, "processor")
                )
            if use.sending is not None:
                what = "link of the chief" if is_chief else f"link of {_named([name])[0]}"
                found.append(_Busy(use.sending, what, name, "link"))
    return found


def _of_shared(job: Running, busiest: _Busy, unknown: tuple[str, ...]) -> Binding:
    use = job.uses[busiest.task]
    why, better, times = "", None, None
    if busiest.kind == "link" and use.sent is not None:
        why = f"{use.sent / 1e6:.1f} MB/s sent, {(use.received or 0.0) / 1e6:.1f} MB/s received"
    elif busiest.kind == "processor" and use.waited > use.processor:
        why = "most of which it waits for a core that others use"
    elif busiest.kind == "cores" and busiest.resource.endswith(" share"):
        why = "tasks on machines of their own would not share them"
    if busiest.task.startswith("ps:") and busiest.kind != "cores":
        ps, times = _best_ps(job, busiest)
        better = f"{ps} ps" if times >= WORTH else None
        if better is None:
            why = ", ".join(part for part in (why, "more ps would not help") if part)
    return Binding(busiest.resource, busiest.share, better, times if better else None, why, unknown)


def _best_ps(job: Running, busiest: _Busy) -> tuple[int, float]:
    """Returns the fewest ps that are nearly as fast as the best number, and how many times as fast as now that is."""
    now = sum(name.startswith("ps:") for name in job.tasks)
    workers = _workers(job)
    most = max(now + 1, min(MOST, 2 * len(workers)))
    speeds = {ps: 1 / _time(job, busiest, ps, len(workers)) for ps in range(now, most + 1)}
    best = max(speeds.values())
    chosen = next(ps for ps, speed in speeds.items() if speed >= (1 - CLOSE) * best)
    return chosen, speeds[chosen] / speeds[now]


def _time(job: Running, busiest: _Busy, ps: int, workers: int) -> float:
    """Returns the time of a cycle with other numbers of tasks, in units of about that of now."""
    now, known = sum(name.startswith("ps:") for name in job.tasks), _workers(job)
    most = job.uses[busiest.task]
    scale = _largest(job, ps) / _largest(job, now)
    running = max((job.uses[name].running for name in known), default=0.0)
    rate = most.sent / most.sending if most.sent and most.sending else None
    wire = [most.sending, (most.received or 0.0) / rate] if rate and most.sending else []
    processor = min(most.running, (most.processor + most.waited) / most.cores)
    # What a worker needs of each in its cycle, and what it does by itself: it computes, and its own link carries what it sends.
    needs = [scale * share / len(known) for share in (*wire, processor)]
    own = running
    if rate:
        carried = sum((job.uses[name].sent or 0.0) + (job.uses[name].received or 0.0) for name in known) / rate
        own = max(running, running + carried / len(known) - sum(needs[:-1]))
    chief = max((use.running for name, use in job.uses.items() if name.startswith("chief:")), default=0.0)
    chief *= workers / len(known)
    if job.strategy == "parameter_server" and not job.is_together:
        return combined(queued(workers, own, needs), chief)
    return combined(own, max([*(need * workers for need in needs), chief]))


def _largest(job: Running, ps: int) -> float:
    """Returns the part of the parameters on the ps that holds the most; equal parts if the variables are not known."""
    if not job.variables:
        return 1 / ps
    placed = evenly(sum(each.size for each in job.variables), ps)
    if job.strategy == "parameter_server":
        placed = whole_and_split(job.variables, ps)
    return max(placed) / sum(placed)


def _of_workers(job: Running, unknown: tuple[str, ...]) -> Binding:
    """Returns what binds where no shared resource does: the workers' own processors or links."""
    workers = _workers(job)
    if not workers:
        return Binding(None, why="not known", unknown=unknown)
    running = {name: job.uses[name].running for name in workers}
    by_running = sorted(workers, key=lambda name: -running[name])
    slowest, sending = by_running[0], max(job.uses[name].sending or 0.0 for name in workers)
    is_together = job.strategy == "multi_worker_mirrored" or job.is_together
    if is_together and len(workers) > 1 and running[slowest] >= BINDS and running[by_running[1]] <= running[slowest] - APART:
        next_one = min(1.0, running[by_running[1]] + (job.uses[by_running[1]].sending or 0.0))
        name = _named([slowest])[0]
        times = running[slowest] / next_one if next_one else None
        better = f"{name} as fast as the next slowest" if times and times >= WORTH else None
        return Binding(
            f"processor of {name}", running[slowest], better, times if better else None, "others wait for it", unknown
        )
    if sending >= BINDS and sending >= running[slowest]:
        times = 1 / (1 - sending / 2) if is_together else None
        return Binding("worker link", sending, "links of twice the rate" if times else None, times, "", unknown)
    if running[slowest] < BINDS:
        most = max([sending, *running.values(), *(each.share for each in _shared(job))])
        why = f"no processor and no known link is busy for more than {most:.0%} of the time: tasks wait for replies or data"
        return Binding(None, why=why, unknown=unknown)
    served = [each for each in _shared(job) if each.task.startswith("ps:")]
    mean = sum(running.values()) / len(running)
    if not served or job.strategy not in ("parameter_server", "hogwild") or job.is_together:
        return Binding("worker processor", mean, None, None, "", unknown)
    busiest, more = max(served, key=lambda each: each.share), 2 * len(workers)
    ps = sum(name.startswith("ps:") for name in job.tasks)
    times = 2 * _time(job, busiest, ps, len(workers)) / _time(job, busiest, ps, more)
    better = f"{more} workers on machines of their own" if times >= WORTH else None
    return Binding("worker processor", mean, better, times if better else None, "", unknown)


def _workers(job: Running) -> list[str]:
    """Returns the tasks that compute, of those whose use is known."""
    return [name for name in job.uses if name.startswith("worker:")] or [
        name for name in job.uses if not name.startswith(("ps:", "evaluator:"))
    ]


def _named(names: Sequence[str]) -> list[str]:
    return [name.replace(":", " ") if not name.startswith("chief:") else "the chief" for name in names]


def _listed(names: Sequence[str]) -> str:
    words = _named(names)
    if len(words) > 4:
        words = [*words[:3], f"{len(words) - 3} others"]
    return f"{', '.join(words[:-1])} and {words[-1]}"
