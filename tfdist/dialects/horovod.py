"""Horovod and MPI: command lines, host files, and the environment of a rank.

Every slot that is used is one rank, and every rank one `worker` task, as Horovod starts one process for each. Ranks fill the
hosts in the order in which they are given. Sources of the rules: horovod/horovod v0.28.1 `horovod/runner/launch.py`,
`runner/common/util/hosts.py` and `common/common.h`; the manual pages of Open MPI 4.1 `mpirun` and MPICH's `mpiexec.hydra`.

Where Horovod's own reader is known to go wrong this one does what is documented: blank lines and comments in a host file
(IndexError there), `-np` below the number of slots (its Gloo launcher starts all slots), a host that is named twice (its
local and cross ranks collapse there).
"""

import os
import re
import tempfile
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from tfdist.cluster import Cluster, Task, valid_host
from tfdist.dialects.command_line import Values
from tfdist.dialects.document import MAX_TASKS, Document, shown
from tfdist.errors import ClusterError, Source, nearest
from tfdist.rank_info import RankInfo, Store

NAME = "horovod"
EXAMPLE = "a Horovod or MPI command line or host file (horovodrun -np 4 -H a:2,b:2; a slots=2)"
WORDS: frozenset[str] = frozenset()
IS_MAPPING = False
PROGRAMS = ("horovodrun", "horovod.runner.launch", "mpirun", "mpiexec", "mpiexec.hydra", "orterun")

Hosts = list[tuple[str, int]]
"""Hosts and how many ranks each may hold, in the order of the ranks."""

_SLOTS_LINE = re.compile(r"[\w.@-]+[ \t]+[\w-]*slots?[ \t]*=", re.ASCII)
_COLON_LINE = re.compile(r"([\w.@-]+):([0-9]+)(?:[ \t].*)?", re.ASCII)
_OPTION = re.compile(r"([A-Za-z][\w-]*)[ \t]*=[ \t]*(\S*)", re.ASCII)
_HOST = re.compile(r"([^:]*)(?::([0-9]{1,9}))?", re.ASCII)
_FILE_OPTIONS = ("slots", "max_slots", "max-slots", "binding", "user", "username", "port")


def looks_like(content: "str | Mapping[Any, Any]") -> bool:
    """Whether the first line that says anything is one of a host file: `a slots=2` or `a:2`."""
    if not isinstance(content, str):
        return False
    first = next((line for line in map(_without_comment, content.splitlines()) if line), "")
    return bool(_SLOTS_LINE.match(first) or _COLON_LINE.fullmatch(first))


def parse(document: Document, **_: Any) -> Cluster:
    """Reads a host file in the form of Horovod, Open MPI (`a slots=2 max_slots=4`) or MPICH (`a:2`); every slot is a worker."""
    source = Source(NAME, document.name)
    hosts = merged(parse_hostfile(document.text, source))
    return cluster_of([host for host, slots in hosts for _ in range(slots)], source)


def parse_command(words: list[str], source: Source) -> Cluster:
    """Reads the command line of horovodrun or mpirun; see `tfdist.dialects.horovod_command`."""
    from tfdist.dialects.horovod_command import ranks

    return cluster_of(ranks(words, source), source)


def cluster_of(hosts: list[str], source: Source) -> Cluster:
    """A worker on each of the hosts, one for each rank."""
    return Cluster(tuple(Task("worker", rank, host) for rank, host in enumerate(hosts)), source=source)


def parse_hostfile(text: str, source: Source) -> Hosts:
    """The hosts of a host file. Raises ClusterError with the line of the fault."""
    hosts: Hosts = []
    total = 0
    for number, line in enumerate(text.splitlines(), start=1):
        line = _without_comment(line)
        if line:
            host, slots = _hostfile_line(line, number, source)
            total += slots
            _check_total(total, source)
            hosts.append((host, slots))
    if not total:
        raise source.error("the host file has no slots; it needs a line such as `a slots=2`")
    return hosts


def parse_hosts(text: str, source: Source, field: str) -> Hosts:
    """The hosts of `-H a:2,b:2`; without a number a host has one slot."""
    hosts: Hosts = []
    for item in text.split(","):
        match = _HOST.fullmatch(item.strip())
        if match is None or not valid_host(match[1]):
            raise source.error(f"{shown(item)} is not a host and its slots; expected a:2,b:2", field=field)
        hosts.append((match[1], int(match[2] or 1)))
    _check_total(sum(slots for _, slots in hosts), source)
    return hosts


def merged(hosts: Hosts) -> Hosts:
    """A host that is named again adds to its slots, as Open MPI has it."""
    slots: dict[str, int] = {}
    for host, count in hosts:
        slots[host] = slots.get(host, 0) + count
    return list(slots.items())


def _check_total(total: int, source: Source) -> None:
    if total > MAX_TASKS:
        raise source.error(f"there are more than {MAX_TASKS} slots, which is more than tfdist supports")


def _without_comment(line: str) -> str:
    return line.partition("#")[0].strip()


def _hostfile_line(line: str, number: int, source: Source) -> tuple[str, int]:
    def fault(message: str) -> ClusterError:
        return source.error(message, line=number)

    if match := _COLON_LINE.fullmatch(line):
        name, slots, rest = match[1], match[2], line.partition(" ")[2]
    else:
        name, _, rest = line.replace("\t", " ").partition(" ")
        slots = None
    options = _OPTION.findall(rest)
    if left := _OPTION.sub("", rest).split():
        raise fault(f"{shown(left[0])} means nothing here; expected a line such as `a slots=2`")
    for key, value in options:
        if key not in _FILE_OPTIONS:
            raise fault(f"{shown(key)} is not known in a host file{nearest(key, _FILE_OPTIONS)}")
        if key == "slots":
            slots = value
    host = name.rpartition("@")[2]
    if not valid_host(host):
        raise fault(f"{shown(name)} is neither a host name nor an address")
    if slots is None:
        raise fault(f"the slots of {shown(host)} are missing; write `{host} slots=2`")
    if not (slots.isascii() and slots.isdecimal() and len(slots) <= 9):
        raise fault(f"{shown(slots)} is not a number of slots")
    return host, int(slots)


# The environment.

_SYSTEMS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Rank, size, local rank and local size, in the order in which Horovod looks (horovod/common/gloo/gloo_context.cc)."""


def recognizes(environ: Mapping[str, str]) -> str | None:
    """Recognizes a rank of horovodrun, Open MPI or MPICH by its rank or size.

    `srun --mpi=pmi2` sets PMI_RANK too; where MPICH's own variables are missing that is Slurm's, which also knows the hosts.
    """
    for rank, size, local_rank, _ in _SYSTEMS:
        if rank == "PMI_RANK" and "SLURM_STEP_ID" in environ and local_rank not in environ:
            continue
        for name in (rank, size):
            if environ.get(name, "").strip():
                return name
    return None


_RUN_IDS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "HOROVOD_GLOO_RENDEZVOUS_PORT", "PMI_PORT")
"""What all ranks of one run have alike and no other run on the host at the same time."""


def from_environ(environ: Mapping[str, str]) -> RankInfo:
    """Reads rank and size. Ranks that are all on one host meet in its temporary folder; else nothing says where they are.

    HOROVOD_GLOO_RENDEZVOUS_ADDR is of no use to others: Horovod's own server stops serving when its ranks have met.
    """
    found = recognizes(environ)
    rank_name, size_name, local_rank_name, local_size_name = next(names for names in _SYSTEMS if found in names[:2])
    source = Source(NAME, rank_name)
    for name, other in ((rank_name, size_name), (size_name, rank_name)):
        if not environ.get(name, "").strip():
            raise source.error(f"it is not set, but {other} is; a launcher sets both (Horovod, too, wants both)", field=name)
    values = Values(source, environ)
    size = values.number(size_name, least=1)
    rank = values.number(rank_name, most=size - 1)
    local_rank = local_size = None
    if local_rank_name in environ and local_size_name in environ:
        local_size = values.number(local_size_name, least=1, most=size)
        local_rank = values.number(local_rank_name, most=local_size - 1)
    if local_size != size:
        return RankInfo(size, rank, source, local_rank=local_rank, local_size=local_size)
    run = next((f"{name}-{environ[name]}" for name in _RUN_IDS if environ.get(name)), "")
    store, run_id = Store("file", path=tempfile.gettempdir()), f"mpi-{os.getuid()}-{run[:100]}"
    return RankInfo(size, rank, source, store, run_id, local_rank=local_rank, local_size=local_size, host="localhost")


# Writing.


def write(cluster: Cluster) -> str:
    """Returns a Horovod host file, one line for each host. Ports are not carried over: Horovod chooses its own.

    Raises:
        ClusterError: for anything but workers with one slot each that step together, each host's one after the other.
    """
    cannot = cluster.source.error
    for job in ("chief", "ps", "evaluator"):
        if cluster.job(job):
            hint = "rank 0 is the chief: describe it as worker 0" if job == "chief" else "it trains by AllReduce alone"
            raise cannot(f"Horovod has no words for a {job}; {hint}")
    if cluster.partial or any(task.slots != 1 for task in cluster.tasks):
        raise cannot("Horovod has one process for each slot; describe a worker task for each, and all of them")
    same = Cluster(tuple(Task("worker", n) for n in range(len(cluster.tasks))))
    for name in ("worker_groups", "sync_period", "share_memory", "job_dir", "strategy", "protocol"):
        if getattr(cluster, name) != getattr(same, name):
            raise cannot(f"Horovod has no words for {name} {shown(getattr(cluster, name))}; translate to tf_config instead")
    hosts = [(host, len(list(tasks))) for host, tasks in groupby(task.host or "localhost" for task in cluster.tasks)]
    names = [host.lower() for host, _ in hosts]
    if len(set(names)) < len(names):
        raise cannot("Horovod wants the ranks of a host one after the other; list the workers by host")
    if any(":" in name for name in names):
        raise cannot("Horovod's host file has no IPv6 addresses; use a name")
    return "".join(f"{host} slots={slots}\n" for host, slots in hosts)
