"""Hypothesis strategies of clusters: of every kind, and of the usual kinds."""

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from tfdist.cluster import JOBS, Cluster, Task
from tfdist.outer_options import OUTER_OPTIMIZERS
from tfdist.partition import Partition
from tfdist.synchronization import COMPRESSIONS, Synchronization

_hosts = st.one_of(
    st.none(),
    st.sampled_from(["localhost", "a", "b.example.org", "10.0.0.1", "::1", "2001:db8::2", "HOST"]),
    st.text("ab1", min_size=1),
)


_synchronizations = st.builds(
    Synchronization,
    outer=st.sampled_from(list(OUTER_OPTIMIZERS)),
    outer_learning_rate=st.none() | st.floats(0.01, 2.0),
    elastic_rate=st.none() | st.floats(0.01, 1.0),
    compression=st.none() | st.sampled_from(COMPRESSIONS),
    fragments=st.integers(1, 8),
    adaptive=st.booleans(),
    delay=st.none() | st.integers(0, 1),
)

_layouts = st.tuples(
    st.sampled_from(["dense.*/kernel", "(a|b)/x{1,2}", r"fc\.1/(kernel|bias|embeddings)"]), st.none() | st.integers(-8, 8)
)
_partitions = st.just(Partition()) | st.builds(
    Partition, layouts=st.lists(_layouts, min_size=1, max_size=3).map(tuple), devices=st.none() | st.integers(2, 4)
)


@st.composite
def _groups(draw: st.DrawFn, ranks: int) -> tuple[tuple[int, ...], ...]:
    order = draw(st.permutations(range(ranks)))
    cuts = sorted(draw(st.sets(st.integers(1, ranks - 1)))) if ranks > 1 else []
    return tuple(tuple(order[first:last]) for first, last in zip([0, *cuts], [*cuts, ranks], strict=True))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Clusters of every kind: open and given addresses, groups, slots, evaluators, partial views with holes."""
    partial = draw(st.booleans())
    counts = {"chief": draw(st.integers(0, 1)), "worker": draw(st.integers(0, 4)), "ps": draw(st.integers(0, 3))}
    counts["evaluator"] = draw(st.integers(0, 2))
    if not partial and not counts["worker"]:
        counts["ps"], counts["chief"] = 0, 1
    if not sum(counts.values()):
        counts["worker"] = 1
    tasks = []
    ports = iter(draw(st.permutations(range(20000, 20020))))
    for job, count in counts.items():
        holes = job == "evaluator" or partial
        indices = sorted(draw(st.sets(st.integers(0, 9), min_size=count, max_size=count))) if holes else range(count)
        for index in indices:
            slots = draw(st.integers(1, 3))
            port = next(ports) if draw(st.booleans()) else None
            tasks.append(Task(job, index, draw(_hosts), port, slots, draw(st.integers(0, slots))))
    ranks = {job: sum(task.slots for task in tasks if task.job == job) for job in ("worker", "ps")}
    return Cluster(
        tasks=tuple(tasks),
        worker_groups=draw(_groups(ranks["worker"])) if ranks["worker"] and draw(st.booleans()) else (),
        server_groups=draw(_groups(ranks["ps"])) if ranks["ps"] and draw(st.booleans()) else (),
        separate_servers=draw(st.booleans()),
        sync_period=draw(st.integers(1, 10**6)),
        synchronization=draw(_synchronizations),
        partition=draw(_partitions),
        share_memory=draw(st.booleans()),
        job_dir=draw(st.none() | st.text(max_size=8)),
        strategy=draw(st.none() | st.sampled_from(["hogwild", "mirrored"])),
        protocol=draw(st.sampled_from(["grpc", "grpc+verbs"])),
        partial=partial,
    )


Machines = Mapping[tuple[int, int], Sequence[str | None]]

NAMES = ("node1", "node2.example.com", "10.0.0.1", "10.0.0.2", "::1", "fe80::1%eth0", "Node1-b")
MACHINES = {(1, 0): (None, "n1-standard-4"), (2, 0): (None,), (1, 1): ("n1-standard-8+1xNVIDIA_TESLA_T4",), (4, 4): (None,)}
"""Slots and GPUs, and machines of Google's clouds that have them."""


GOOGLE_MACHINES = {
    (1, 0): (None, "n1-standard-4", "standard", "cloud_tpu", "cloud_tpu+8xTPU_V2", "ct5lp-hightpu-4t", "n2-custom-4-8"),
    (1, 1): (
        "n1-standard-8+1xNVIDIA_TESLA_T4",
        "g2-standard-8+1xNVIDIA_L4",
        "standard_gpu",
        "+1xNVIDIA_TESLA_T4",
        "a2-highgpu-1g",
    ),
    (4, 4): (None, "complex_model_m_gpu", "n1-standard-16+4xNVIDIA_TESLA_V100", "n1-standard-4"),
}
"""Machines of which CloudML, Vertex AI, both or none has words."""

JOB_DIRS = (None, None, "gs://bucket/out", 'a "b" \\ ü # $(X)')
HOSTILE_JOB_DIRS = (None, "a\n---\nb: \x85\u2028\x00", "\ud800", "'$(x) `y`")


@st.composite
def usual_clusters(draw: st.DrawFn, machines: Machines = MACHINES, job_dirs: Sequence[str | None] = JOB_DIRS) -> Cluster:
    """Clusters such as people have: tasks of a job alike, groups of one size. Each dialect can say many of them."""
    style = draw(st.sampled_from(["workers", "chief", "jobs", "groups"]))
    groups = draw(st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)])) if style == "groups" else None
    counts = dict.fromkeys(JOBS, 0)
    per_group = per_server_group = 1
    if groups:
        per_group, per_server_group = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        counts["worker"], counts["ps"] = groups[0] * per_group, groups[1] * per_server_group
    else:
        counts["worker"], counts["ps"] = draw(st.integers(0, 9)), draw(st.sampled_from([0, 0, 1, 3]))
    counts["chief"] = draw(st.integers(0, 1)) if style == "jobs" else int(style == "chief")
    counts["evaluator"] = draw(st.sampled_from([0, 0, 1, 2])) if style in ("chief", "jobs") else 0
    counts["ps"] = 0 if style == "workers" else counts["ps"]
    counts["worker"] = max(counts["worker"], 1 if counts["ps"] or not counts["chief"] else 0)
    where = draw(st.sampled_from(["open", "open", "a host each", "some on a host"]))
    first, port = draw(st.integers(0, len(NAMES) - 1)), draw(st.none() | st.integers(1024, 40_000))
    tasks: list[Task] = []
    for job in JOBS:
        slots, gpus = (1, 0) if job == "ps" or groups else draw(st.sampled_from([(1, 0), (1, 0), (1, 0), *machines]))
        machine = draw(st.sampled_from(machines[slots, gpus]))
        for index in range(counts[job]):
            host = None
            if where == "a host each":
                host = f"{job}-{index}.svc"
            elif where == "some on a host":
                host = NAMES[(first + len(tasks) // 3) % len(NAMES)]
            number = port + len(tasks) if port and host else None
            tasks.append(Task(job, index, host, number, slots, gpus, machine))
    fields = {"job_dir": draw(st.sampled_from(job_dirs))}
    if groups:
        fields |= {
            "worker_groups": _runs(groups[0], per_group),
            "server_groups": _runs(groups[1], per_server_group),
            "separate_servers": draw(st.booleans()),
            "sync_period": draw(st.sampled_from([1, 8, 2**31 - 1])),
            "share_memory": draw(st.booleans()),
        }
    return Cluster(tuple(tasks), **fields)


def _runs(groups: int, size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(first, first + size)) for first in range(0, groups * size, size))
