"""The environment of a task of a step of Slurm.

`srun` gives every task the hosts of its step, the number of tasks on each, and its rank. The layout of the ranks is that of
srun(1), `--distribution`; names and forms of the variables are those of Slurm 22.05 and later. Rank r is task r, and no GPU is
needed. TensorFlow's SlurmClusterResolver (2.21) differs: it sorts hosts by name and assigns jobs in alphabetical order.
"""

import re
from collections.abc import Iterator, Mapping

from tfdist.cluster import Cluster, Task, valid_host
from tfdist.dialects.parsing.document import MAX_TASKS, shown
from tfdist.dialects.parsing.values import Values
from tfdist.dialects.slurm.options import listed_gpus, number_of_gpus, share
from tfdist.dialects.slurm.script import NAME
from tfdist.errors import Source
from tfdist.extras import pip_install
from tfdist.rank_info import RankInfo

BASE_PORT = 8888
"""First port of a step on each host: the default of TensorFlow's SlurmClusterResolver."""

PORTS_OF_A_STEP, STEPS_APART = 64, 300
"""Steps with different job and step numbers get ports 64 apart, 300 times, so two jobs on a host rarely take the same ports.
The highest first port, 28024, is below the range from which Linux assigns ports (32768)."""

_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", re.ASCII)
_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)


def recognizes(environ: Mapping[str, str]) -> str | None:
    """Returns SLURM_PROCID in a task of a step, else None. The shell of sbatch has a rank, but no SLURM_STEP_NUM_TASKS."""
    return "SLURM_PROCID" if "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ else None


def from_environ(environ: Mapping[str, str]) -> Cluster | RankInfo:
    """Reads the step: rank r is `worker:r`. A description may give other jobs to the ranks, see `tfdist.create_strategy`.

    Raises:
        ClusterError: for missing or contradictory variables, for `--distribution=arbitrary`, for steps that span the components
            of a heterogeneous job, and for a bracketed list of hosts if python-hostlist is not installed.
    """
    source = Source(NAME, "SLURM_PROCID")
    values = Values(source, environ)
    size = values.number("SLURM_STEP_NUM_TASKS", least=1)
    rank = values.number("SLURM_PROCID", most=10**9)
    if rank >= size:
        raise source.error(
            f"rank {rank} of a step of {size} tasks: this step spans the components of a heterogeneous job, which tfdist does "
            "not read; start it in one component, srun --het-group=0"
        )
    hosts = _hosts(environ.get("SLURM_STEP_NODELIST", ""), source)
    counts = _tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""), source)
    if len(hosts) != len(counts) or sum(counts) != size:
        raise source.error(
            f"{sum(counts)} tasks on {len(counts)} nodes do not go with {len(hosts)} hosts and SLURM_STEP_NUM_TASKS {size}",
            field="SLURM_STEP_TASKS_PER_NODE",
        )
    places = list(_places(counts, environ, source))
    ports = _ports(environ, max(counts), source)
    slots, gpus = _gpus(environ, counts, source)
    tasks = tuple(Task("worker", index, hosts[node], ports[local], slots, gpus) for index, (node, local) in enumerate(places))
    for name, here in zip(("SLURM_NODEID", "SLURM_LOCALID"), places[rank], strict=True):
        if name in environ and values.number(name) != here:
            raise source.error(
                f"rank {rank} is {environ[name]}, and would be {here} by the layout of the step; this layout is not known",
                field=name,
            )
    return Cluster(tasks, source=source, task=("worker", rank))


def _hosts(text: str, source: Source) -> list[str]:
    """Returns the hosts of a list such as `n[1-3,7],login`, in its order."""
    hosts = text.split(",")
    if "[" in text or "]" in text:
        try:
            import hostlist  # Needed only for such lists.
        except ImportError:
            raise source.error(
                f"{shown(text)} needs the library python-hostlist: {pip_install('slurm')}", field="SLURM_STEP_NODELIST"
            ) from None
        try:
            hosts = hostlist.expand_hostlist(text[: MAX_TASKS * 10], allow_duplicates=True)
        except (hostlist.BadHostlist, ValueError, RecursionError) as error:
            raise source.error(
                f"{shown(text)} is not a list of hosts: {shown(str(error))}", field="SLURM_STEP_NODELIST"
            ) from None
    for host in hosts:
        if not valid_host(host):
            raise source.error(f"{shown(host)} is neither a host name nor an address", field="SLURM_STEP_NODELIST")
    return hosts


def _tasks_per_node(text: str, source: Source) -> list[int]:
    """Returns the numbers of `2(x3),1`: 2, 2, 2, 1."""
    counts: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part)
        if match is None or int(match[1]) < 1 or len(counts) + int(match[2] or 1) > MAX_TASKS:
            raise source.error(
                f"{shown(text)} is not a list of tasks per node; expected 2(x3),1", field="SLURM_STEP_TASKS_PER_NODE"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _places(counts: list[int], environ: Mapping[str, str], source: Source) -> Iterator[tuple[int, int]]:
    """Yields the node of each rank and its number there: block fills node after node, cyclic and plane go round."""
    text = environ.get("SLURM_DISTRIBUTION", "")
    kind = re.split("[:,]", text)[0].lower()
    if kind in ("", "*", "block", "pack", "nopack"):
        plane = max(counts)
    elif kind == "cyclic":
        plane = 1
    elif kind == "plane":
        plane = Values(source, environ).number("SLURM_DIST_PLANESIZE", least=1, most=10**9)
    else:
        raise source.error(
            f"{shown(text)} is a placement of ranks that tfdist does not support; use block or cyclic",
            field="SLURM_DISTRIBUTION",
        )
    nodes = [iter(range(count)) for count in counts]
    left = sum(counts)
    while left:
        for node, numbers in enumerate(nodes):
            for _ in range(plane):
                local = next(numbers, None)
                if local is None:
                    break
                left -= 1
                yield node, local


def _ports(environ: Mapping[str, str], most: int, source: Source) -> list[int]:
    """Returns a port for each task of a node: those that `srun --resv-ports` reserved, else by the numbers of job and step."""
    reserved = [match for part in environ.get("SLURM_STEP_RESV_PORTS", "").split(",") if (match := _PORTS.fullmatch(part))]
    ports = [port for match in reserved for port in range(int(match[1]), int(match[2] or match[1]) + 1)]
    if len(ports) >= most:
        return ports
    number = sum(Values(source, environ).number(name, 0, most=2**32) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    first = BASE_PORT + PORTS_OF_A_STEP * (number % STEPS_APART)
    if first + most > 65536:
        raise source.error(f"{most} tasks on one node are more than there are ports", field="SLURM_STEP_TASKS_PER_NODE")
    return list(range(first, first + most))


def _gpus(environ: Mapping[str, str], counts: list[int], source: Source) -> tuple[int, int]:
    """Returns slots and GPUs of each task: those that srun was asked for, else an equal share of the GPUs of a node.

    Every task has to read the same cluster and knows only its own node. So GPUs of a node count only if all nodes have as many
    tasks, and as many GPUs as far as the variables say. Otherwise a task has one slot, and nothing is said of its GPUs.
    """
    values = Values(source, environ)
    gpus = number_of_gpus(values, "SLURM_GPUS_PER_TASK") or listed_gpus(values, "SLURM_TRES_PER_TASK")
    if not gpus and len(set(counts)) == 1:
        on_node = number_of_gpus(values, "SLURM_GPUS_PER_NODE") or number_of_gpus(values, "SLURM_GPUS_ON_NODE")
        total = number_of_gpus(values, "SLURM_GPUS")
        gpus = share(on_node, counts[0]) if not total or total == on_node * len(counts) else 0
    return max(1, gpus), gpus
