"""`Layout`: the fields of a cluster block, their constraints, and the tasks that they mean.

The formulas are those of apache/singa src/utils/cluster.cc v0.3.0-rc3. SINGA checks almost nothing: a layout that does not
divide evenly loses executors silently. `Layout.check` refuses it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.cluster import Cluster, Groups, Task
from tfdist.dialects.parsing.document import MAX_TASKS
from tfdist.errors import ClusterError, Source
from tfdist.partition import MAX_DEVICES, Partition


@dataclass(frozen=True)
class Layout:
    """The fields of one cluster block, and the tasks that they mean.

    Attributes:
        source: for messages.
        proto: the parsed ClusterProto.
        lines: field -> line, of the fields that are given.
        gpu: the `gpu` entries beside the cluster block.
        layouts: which variables the workers of a group share, from `partition_dim`.
    """

    source: Source
    proto: Any
    lines: Mapping[str, int]
    gpu: tuple[int, ...] = ()
    layouts: tuple[tuple[str, int | None], ...] = ()

    @property
    def workers(self) -> int:
        """Workers in all groups."""
        return int(self.proto.nworker_groups * self.proto.nworkers_per_group)

    @property
    def servers(self) -> int:
        """Servers in all groups."""
        return int(self.proto.nserver_groups * self.proto.nservers_per_group)

    @property
    def is_all_reduce(self) -> bool:
        """Whether this is AllReduce: each worker of the one group has its share of the one server group."""
        one_each = self.proto.nworker_groups == 1 and self.proto.nserver_groups == 1
        return one_each and not self.proto.server_worker_separate

    def check(self) -> None:
        """Raises ClusterError for a field that is out of range, and for a layout that SINGA would silently cut off."""
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

    def _check_layout(self, kind: str, total: int, group: int, procs: int) -> None:
        """Raises ClusterError for a remainder. SINGA ignores it and then routes to processes that do not exist."""
        field = f"n{kind}s_per_procs"
        if total % procs:
            raise self._error(
                f"{total} {kind}s (in groups of {group}) do not fill processes of {procs}; "
                f"choose a {field} that divides {total}",
                field,
            )
        if group % procs and procs % group:
            raise self._error(
                f"groups of {group} {kind}s and processes of {procs} overlap; "
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

    def cluster(self, hosts: list[str]) -> Cluster:
        """Returns the cluster. Processes go round the `hosts`; without any the hosts are open."""
        proto = self.proto
        servers = 0 if self.is_all_reduce else self.servers
        worker_procs = self.workers // proto.nworkers_per_procs
        offset = worker_procs if proto.server_worker_separate else 0
        layout = [("worker", n, n, proto.nworkers_per_procs) for n in range(worker_procs)]
        layout += [("ps", n, n + offset, proto.nservers_per_procs) for n in range(servers // proto.nservers_per_procs)]
        # Ports count up per host in the order of the processes; a process' worker comes before its server.
        layout.sort(key=lambda entry: (entry[2], entry[0] == "ps"))
        with_ports = bool(hosts) or "start_port" in self.lines
        following: dict[str | None, int] = {}  # by host in lower case: host names ignore case
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
            # Without servers it means nothing, and clusters with the same meaning are equal.
            separate_servers=proto.server_worker_separate if servers else True,
            sync_period=proto.sync_freq,
            partition=self._partition(),
            share_memory=proto.share_memory,
            job_dir=proto.workspace or None,
            source=self.source,
        )

    def _partition(self) -> Partition:
        """Returns the partition of the model over the workers of a group: with one worker there is none."""
        devices = int(self.proto.nworkers_per_group)
        if not self.layouts or devices == 1:
            return Partition()
        if devices > MAX_DEVICES:
            raise self._error(f"a model is partitioned over {MAX_DEVICES} workers at most, not {devices}", "nworkers_per_group")
        return Partition(self.layouts, devices)


def _groups(count: int, size: int) -> Groups:
    return tuple(tuple(range(group * size, (group + 1) * size)) for group in range(count))
