"""`explain`: which resource binds a running job, and what would train faster, from what its tasks use.

A resource that is busy for a part of the time costs each worker that part of its cycle, divided by the workers that share it.
With these demands the model of the predictions (predict.py, queues.py) gives the time of a cycle with other numbers of ps and
workers.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tfdist.planner import quotas
from tfdist.planner.placement import evenly, whole_and_split
from tfdist.planner.predict import BINDS, combined
from tfdist.planner.queues import cycle as queued
from tfdist.planner.recommend import CLOSE
from tfdist.planner.running import APART, WORTH, Binding, Running, listed, named
from tfdist.planner.use import Use

FULL = 0.9
"""From this part of its cores on, the tasks of a machine wait for each other, or for other programs."""

MOST = 64
"""No more ps are proposed."""


@dataclass(frozen=True)
class _Busy:
    share: float
    resource: str
    task: str
    kind: str
    sentence: str = ""


def explain(job: Running) -> Binding:
    """Returns what binds a job."""
    missing = [name for name in job.tasks if name not in job.uses]
    if len(missing) == len(job.tasks):
        return Binding(None, why="not known: nobody reports what the tasks use of processors and links")
    unknown = tuple([f"what {', '.join(named(missing))} use{'s' * (len(missing) == 1)}"] if missing else [])
    silent = [name for name in job.tasks if name in job.uses and job.uses[name].sending is None]
    unknown += tuple([f"the link{'s' * (len(silent) > 1)} of {', '.join(named(silent))}"] if silent else [])
    held = quotas.limits(job)
    shared = sorted(_shared(job, held), key=lambda each: -each.share)
    if (found := quotas.of_workers(job, held, shared[0].share if shared else 0.0, unknown)) is not None:
        return found
    if shared and shared[0].share >= BINDS:
        return _of_shared(job, shared[0], unknown)
    return _of_workers(job, shared, unknown)


def _shared(job: Running, held: Sequence[quotas.Limit]) -> list[_Busy]:
    """Returns how busy the resources are that several tasks use."""
    busy, full = [], set()
    for limit in held:
        if len(limit.tasks) > 1 or not limit.tasks[0].startswith("worker:"):
            full |= set(limit.tasks)
            busy.append(_Busy(limit.share, limit.resource, limit.tasks[0], "quota", limit.sentence))
    for host in dict.fromkeys(job.hosts.get(name, "") for name in job.uses):
        here = [name for name in job.uses if job.hosts.get(name, "") == host]
        if full.issuperset(here):
            continue
        use = job.uses[here[0]]
        cores = max(job.uses[name].cores_of_all or job.uses[name].capacity for name in here)
        own = sum(job.uses[name].processor for name in here) / cores
        share = min(1.0, max(own, use.machine))
        if share >= FULL and (len(here) > 1 or own < share / 2):
            full |= set(here)
            resource = f"cores that {listed(here)} share" if len(here) > 1 else f"cores of {named(here)[0]}"
            if own < share / 2:
                resource = f"cores of {host or 'a machine'}, most of which other programs use"
            busy.append(_Busy(share, resource, here[0], "cores"))
    return busy + (_of_servers(job, full) if job.strategy in ("parameter_server", "hogwild") else [])


def _of_servers(job: Running, full: Collection[str]) -> list[_Busy]:
    """Returns how busy the chief and the ps are, and their links: the processor only of those that are not in `full`."""
    busy = []
    for name, use in job.uses.items():
        if name.startswith("worker:"):
            continue
        is_chief = name.startswith("chief:")
        if name not in full:
            # Python runs on one core at a time.
            cores = min(1, use.capacity) if is_chief else use.capacity
            share = min(use.running, (use.processor + use.waited) / cores)
            resource = "chief processor" if is_chief else f"processor of {named([name])[0]}"
            busy.append(_Busy(share, resource, name, "processor"))
        if use.sending is not None:
            resource = "link of the chief" if is_chief else f"link of {named([name])[0]}"
            busy.append(_Busy(use.sending, resource, name, "link"))
    return busy


def _of_shared(job: Running, busiest: _Busy, unknown: tuple[str, ...]) -> Binding:
    use = job.uses[busiest.task]
    why, better, times = "", None, None
    if busiest.kind == "link" and use.sent is not None:
        why = f"{use.sent / 1e6:.1f} MB/s sent, {(use.received or 0.0) / 1e6:.1f} MB/s received"
    elif busiest.kind == "processor" and use.waited > use.processor:
        why = "most of which it waits for a core that others use"
    elif busiest.kind in ("cores", "quota") and busiest.resource.endswith(" share"):
        why = f"tasks on machines of their own would not share {'them' if busiest.kind == 'cores' else 'it'}"
    is_ps = busiest.task.startswith("ps:") and busiest.kind != "cores" and not busiest.resource.endswith(" share")
    if is_ps and job.workers:  # What the others need tells what more ps would give.
        ps, times = _best_ps(job, busiest)
        better = f"{ps} ps" if times >= WORTH else None
        if better is None:
            why = ", ".join(part for part in (why, "more ps would not help") if part)
    return Binding(busiest.resource, busiest.share, better, times if better else None, why, unknown, busiest.sentence)


def _best_ps(job: Running, busiest: _Busy) -> tuple[int, float]:
    """Returns the fewest ps that are nearly as fast as the best number, and how many times as fast as now that is."""
    now = sum(name.startswith("ps:") for name in job.tasks)
    workers = job.workers
    most = max(now + 1, min(MOST, 2 * len(workers)))
    speeds = {ps: 1 / _time(job, busiest, ps, len(workers)) for ps in range(now, most + 1)}
    best = max(speeds.values())
    chosen = next(ps for ps, speed in speeds.items() if speed >= (1 - CLOSE) * best)
    return chosen, speeds[chosen] / speeds[now]


def _time(job: Running, busiest: _Busy, ps: int, workers: int) -> float:
    """Returns the time of a cycle with other numbers of tasks, in units of about that of now."""
    now, known = sum(name.startswith("ps:") for name in job.tasks), job.workers
    most = job.uses[busiest.task]
    scale = _largest(job, ps) / _largest(job, now)
    running = max((job.uses[name].running for name in known), default=0.0)
    rate = most.sent / most.sending if most.sent and most.sending else None
    wire = [most.sending, (most.received or 0.0) / rate] if rate and most.sending else []
    processor = min(most.running, (most.processor + most.waited) / most.capacity)
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
    if not any(each.size for each in job.variables):
        return 1 / ps
    placed = evenly(sum(each.size for each in job.variables), ps)
    if job.strategy == "parameter_server":
        placed = whole_and_split(job.variables, ps)
    return max(placed) / sum(placed)


def _receiving(use: Use) -> float:
    """Returns the part of the time for which a worker's link receives, if it does so as fast as it sends.

    It is no more than that for which it sends: a worker pulls as many bytes as it pushes. What else it receives, batches, comes
    from the chief, whose own link may be what holds them up.
    """
    if not use.sending or not use.sent:
        return 0.0
    return use.sending * min(1.0, (use.received or 0.0) / use.sent)


def _of_workers(job: Running, shared: Sequence[_Busy], unknown: tuple[str, ...]) -> Binding:
    """Returns what binds where no shared resource does: the workers' own processors or links."""
    workers = job.workers
    if not workers:
        return Binding(None, why="not known", unknown=unknown)
    running = {name: job.uses[name].running for name in workers}
    by_running = sorted(workers, key=lambda name: -running[name])
    slowest, sending = by_running[0], max(job.uses[name].sending or 0.0 for name in workers)
    is_together = job.strategy == "multi_worker_mirrored" or job.is_together
    if is_together and len(workers) > 1 and running[slowest] >= BINDS and running[by_running[1]] <= running[slowest] - APART:
        return _of_slowest_worker(job, slowest, by_running[1], unknown)
    carrying, why = sending, ""
    if job.strategy == "parameter_server":  # It pulls, computes and pushes one after the other.
        receiving = max((_receiving(job.uses[name]) for name in workers), default=0.0)
        carrying = min(sending + receiving, 1 - min(running.values()))
        why = f"sends for {sending:.0%}, receives for the rest"
    if carrying >= BINDS and carrying >= running[slowest]:
        times = 1 / (1 - carrying / 2) if is_together or len(workers) == 1 else None
        return Binding("worker link", carrying, "links of twice the rate" if times else None, times, why, unknown)
    if running[slowest] < BINDS:
        most = max([sending, *running.values(), *(each.share for each in shared)])
        why = f"no processor and no known link is busy for more than {most:.0%} of the time: tasks wait for replies or data"
        return Binding(None, why=why, unknown=unknown)
    mean = sum(running.values()) / len(running)
    better, times = _more_workers(job, shared)
    return Binding("worker processor", mean, better, times, "", unknown)


def _of_slowest_worker(job: Running, slowest: str, following: str, unknown: tuple[str, ...]) -> Binding:
    """Returns that the slowest of workers that step together binds; `following` is the next slowest."""
    share = job.uses[slowest].running
    next_share = min(1.0, job.uses[following].running + (job.uses[following].sending or 0.0))
    name = named([slowest])[0]
    times = share / next_share if next_share else None
    better = f"{name} as fast as the next slowest" if times and times >= WORTH else None
    return Binding(f"processor of {name}", share, better, times if better else None, "others wait for it", unknown)


def _more_workers(job: Running, shared: Sequence[_Busy]) -> tuple[str | None, float | None]:
    """Returns twice the workers, in words, and how many times as fast they would train; None for both if that is not known."""
    served = [each for each in shared if each.task.startswith("ps:")]
    if not served or job.strategy not in ("parameter_server", "hogwild") or job.is_together:
        return None, None
    workers = job.workers
    busiest, more = max(served, key=lambda each: each.share), 2 * len(workers)
    ps = sum(name.startswith("ps:") for name in job.tasks)
    times = 2 * _time(job, busiest, ps, len(workers)) / _time(job, busiest, ps, more)
    return (f"{more} workers on machines of their own", times) if times >= WORTH else (None, None)
