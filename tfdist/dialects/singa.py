"""Apache SINGA v0.1 to v0.3: the `cluster` block of job.conf and the host file.

The formulas are those of apache/singa src/utils/cluster.cc v0.3.0-rc3. SINGA itself checks next to nothing: a layout that does
not come out even loses executors without a word, which is why `_check_layout` refuses what SINGA would silently cut off.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.cluster import Cluster, Groups, Task, valid_host
from tfdist.dialects.document import MAX_TASKS, Document, check_text, close, decode, read_bytes, shown
from tfdist.dialects.singa_text import CLUSTER_FIELDS, JOB_FIELDS, Entry, entries, messages, parse_strictly
from tfdist.errors import ClusterError, Source, nearest

NAME = "singa"
EXAMPLE = "SINGA job.conf (cluster { nworker_groups: 1 ... })"
IS_MAPPING = False
WORDS = JOB_FIELDS | CLUSTER_FIELDS.keys()

DEFAULT_START_PORT = 6723


def parse(document: Document, *, hostfile: str | None = None, **_: Any) -> Cluster:
    """Reads job.conf (the whole file, only the cluster block, or only its fields) and, where given, the host file."""
    source = Source(NAME, document.name)
    layout = _Layout.parse(document.text, source)
    layout.check()
    return layout.cluster(_hosts(hostfile) if hostfile is not None else [])


@dataclass(frozen=True)
class _Layout:
    """The fields of one cluster block, where they stand, and the arithmetic on them."""

    source: Source
    proto: Any
    lines: Mapping[str, int]
    gpu: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str, source: Source) -> "_Layout":
        top = entries(text, source)
        blocks = [entry for entry in top if entry.name == "cluster"]
        names = {entry.name for entry in top}
        if not blocks and any(close(name, CLUSTER_FIELDS) for name in names - JOB_FIELDS):
            inner = top
            keep = inner
        else:
            _check_top(top, blocks, source)
            inner = entries(text, source, *blocks[0].inside)
            keep = [entry for entry in top if entry.name in ("cluster", "name", "gpu")]
        lines: dict[str, int] = {}
        for entry in inner:
            _check_inner(entry, lines, source)
        cluster_type, job_type = messages()
        by_line = {line: f"cluster.{name}" for name, line in lines.items()}
        if not blocks:
            return cls(source, parse_strictly(text, cluster_type(), source, by_line), lines)
        by_line |= {entry.line: entry.name for entry in keep if entry.name != "cluster"}
        job = parse_strictly(_blanked(text, keep), job_type(), source, by_line)
        return cls(source, job.cluster, lines, tuple(job.gpu))

    # How many of what.

    @property
    def workers(self) -> int:
        return int(self.proto.nworker_groups * self.proto.nworkers_per_group)

    @property
    def servers(self) -> int:
        return int(self.proto.nserver_groups * self.proto.nservers_per_group)

    @property
    def is_all_reduce(self) -> bool:
        """One group of workers, each with its share of the one server group: the servers are the all-reduce."""
        one_each = self.proto.nworker_groups == 1 and self.proto.nserver_groups == 1
        return one_each and not self.proto.server_worker_separate

    # What has to hold.

    def check(self) -> None:
        for name, least, most in (
            ("nworker_groups", 1, MAX_TASKS),
            ("nserver_groups", 0, MAX_TASKS),
            ("nworkers_per_group", 1, MAX_TASKS),
            ("nservers_per_group", 1, MAX_TASKS),
            ("nworkers_per_procs", 1, MAX_TASKS),
            ("nservers_per_procs", 1, MAX_TASKS),
            ("sync_freq", 1, 2**31 - 1),
            ("start_port", 1, 65535),
            ("poll_time", 1, 2**31 - 1),
        ):
            value = getattr(self.proto, name)
            if not least <= value <= most:
                hint = "; write nserver_groups: 0 for a cluster without servers" if name == "nservers_per_group" else ""
                raise self._error(f"{value} is outside {least} to {most}{hint}", name)
        if self.workers + self.servers > MAX_TASKS:
            raise self._error(
                f"there would be {self.workers} workers and {self.servers} servers, more than {MAX_TASKS} in all; "
                "are the counts per group right?",
                "nworkers_per_group",
            )
        self._check_layout("worker", self.workers, self.proto.nworkers_per_group, self.proto.nworkers_per_procs)
        if self.servers:
            self._check_layout("server", self.servers, self.proto.nservers_per_group, self.proto.nservers_per_procs)
        self._check_groups()

    def _check_layout(self, what: str, total: int, group: int, procs: int) -> None:
        """SINGA divides without looking at the remainder and then routes to processes that do not exist."""
        field = f"n{what}s_per_procs"
        if total % procs:
            raise self._error(
                f"{total} {what}s (in groups of {group}) do not fill processes of {procs}; "
                f"choose a {field} that divides {total}",
                field,
            )
        if group % procs and procs % group:
            raise self._error(
                f"groups of {group} {what}s and processes of {procs} cut each other; "
                f"choose a {field} that divides {group} or is a multiple of it",
                field,
            )

    def _check_groups(self) -> None:
        worker_groups, server_groups = self.proto.nworker_groups, self.proto.nserver_groups
        if not server_groups:
            if worker_groups > 1:
                raise self._error(
                    f"{worker_groups} worker groups without servers would never exchange anything; "
                    "give nserver_groups at least 1, or put all workers into one group",
                    "nserver_groups",
                )
            return
        if worker_groups < server_groups:
            raise self._error(
                f"{server_groups} server groups for {worker_groups} worker groups: each server group serves at least one; "
                f"choose an nserver_groups up to {worker_groups}",
                "nserver_groups",
            )
        if worker_groups % server_groups:
            raise self._error(
                f"{worker_groups} worker groups cannot be shared equally among {server_groups} server groups; "
                f"choose an nserver_groups that divides {worker_groups}",
                "nserver_groups",
            )

    def _error(self, message: str, field: str) -> ClusterError:
        return self.source.error(message, field=f"cluster.{field}", line=self.lines.get(field))

    # What it becomes.

    def cluster(self, hosts: list[str]) -> Cluster:
        proto = self.proto
        servers = 0 if self.is_all_reduce else self.servers
        worker_procs = self.workers // proto.nworkers_per_procs
        offset = worker_procs if proto.server_worker_separate else 0
        layout = [("worker", n, n, proto.nworkers_per_procs) for n in range(worker_procs)]
        layout += [("ps", n, n + offset, proto.nservers_per_procs) for n in range(servers // proto.nservers_per_procs)]
        # Ports count up per host in the order of the processes, the worker of a process before its server.
        layout.sort(key=lambda entry: (entry[2], entry[0] == "ps"))
        with_ports = bool(hosts) or "start_port" in self.lines
        following: dict[str | None, int] = {}  # by host in lower case: names of hosts have none
        tasks = []
        for job, index, process, slots in layout:
            host = hosts[process % len(hosts)] if hosts else None
            key = host.lower() if host else None
            port = following.get(key, proto.start_port) if with_ports else None
            if port is not None:
                following[key] = port + 1
                if port > 65535:
                    raise self._error(f"{proto.start_port} leaves too few ports for {job}:{index} below 65536", "start_port")
            gpus = sum(number >= 0 for number in self.gpu[:slots]) if job == "worker" else 0
            tasks.append(Task(job, index, host, port, slots, gpus))
        return Cluster(
            tasks=tuple(tasks),
            worker_groups=_groups(proto.nworker_groups, proto.nworkers_per_group),
            server_groups=_groups(proto.nserver_groups, proto.nservers_per_group) if servers else (),
            # Without servers it means nothing, and two clusters that mean the same are equal.
            separate_servers=proto.server_worker_separate if servers else True,
            sync_period=proto.sync_freq,
            share_memory=proto.share_memory,
            job_dir=proto.workspace or None,
            source=self.source,
        )


def _groups(count: int, size: int) -> Groups:
    return tuple(tuple(range(group * size, (group + 1) * size)) for group in range(count))


def _check_top(top: list[Entry], blocks: list[Entry], source: Source) -> None:
    """Everything beside `cluster` is SINGA's own business, except what was probably meant to be read here."""
    for entry in top:
        if entry.name in JOB_FIELDS:
            continue
        if entry.name in CLUSTER_FIELDS or close(entry.name, CLUSTER_FIELDS):
            inside = close(entry.name, CLUSTER_FIELDS)
            raise source.error(f"{entry.name} is outside the cluster block; move it inside as {inside}", line=entry.line)
        meant = close(entry.name, ("cluster", "gpu"), 0.7)
        if meant:
            raise source.error(f"{entry.name} is not a field; did you mean {meant}?", line=entry.line)
    if not blocks:
        raise source.error("there is no cluster block; add `cluster { ... }`, empty for one worker and one server")
    if len(blocks) > 1:
        raise source.error(f"this is a second cluster block, the first is in line {blocks[0].line}", line=blocks[1].line)
    if not blocks[0].is_block:
        raise source.error("cluster is a block; write `cluster { ... }`", line=blocks[0].line)


def _check_inner(entry: Entry, lines: dict[str, int], source: Source) -> None:
    """Notes the line of a field of the cluster block. protobuf would refuse the same, with no suggestion."""
    field = f"cluster.{entry.name}"
    if entry.name not in CLUSTER_FIELDS:
        known = ", ".join(CLUSTER_FIELDS)
        hint = nearest(entry.name, CLUSTER_FIELDS, otherwise=f"; the fields are {known}")
        raise source.error(f"ClusterProto has no such field{hint}", field=field[:90], line=entry.line)
    if entry.is_block:
        raise source.error(f"a block stands where one value belongs; write `{entry.name}: ...`", field=field, line=entry.line)
    if entry.name in lines:
        raise source.error(f"it is given twice, first in line {lines[entry.name]}; keep one", field=field, line=entry.line)
    lines[entry.name] = entry.line


def _blanked(text: str, keep: list[Entry]) -> str:
    """Returns the text with everything but some entries replaced by spaces; lines and columns stay."""
    parts, position = [], 0
    for entry in keep:
        parts.append(re.sub(r"[^\n]", " ", text[position : entry.start]))
        # protobuf wants its lines to end in \n alone; nothing of what is kept means anything by another one.
        parts.append(text[entry.start : entry.end])
        position = entry.end
    parts.append(re.sub(r"[^\n]", " ", text[position:]))
    return "".join(parts)


def _hosts(path: str) -> list[str]:
    """Reads a host file: the first field of each line; blank lines and lines that start with `#` are skipped.

    Source: apache/singa src/utils/job_manager.cc and tool/node.sh v0.3.0-rc3.
    """
    source = Source("singa hostfile", path)
    text = check_text(decode(read_bytes(path, source), source), source)
    hosts = []
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if not valid_host(fields[0]):
            raise source.error(f"{shown(fields[0])} is not a host name or an address (ports do not go here)", line=number)
        hosts.append(fields[0])
    return hosts


def write(cluster: Cluster) -> str:
    """Returns the cluster block, and the `gpu` entries that stand beside it in job.conf.

    Hosts are not part of it: they go into the host file, see `write_hostfile`.

    Raises:
        ClusterError: where ClusterProto has no words for the cluster.
    """
    from tfdist.dialects.singa_write import write_job

    return write_job(cluster)


def write_hostfile(cluster: Cluster) -> str:
    """Returns the host file that belongs to `write(cluster)`: the host of each process, in order.

    Raises:
        ClusterError: where the hosts of the cluster are open, or not those of SINGA's layout.
    """
    from tfdist.dialects.singa_write import write_hosts

    return write_hosts(cluster)
