"""Writes the cluster block and the host file of a cluster that SINGA could run."""

from collections.abc import Iterable

from tfdist.cluster import Cluster, Task
from tfdist.dialects.parsing.document import shown
from tfdist.dialects.singa.job_conf import NAME, read_layout
from tfdist.dialects.singa.net import write_net
from tfdist.dialects.singa.text_proto import CLUSTER_FIELDS
from tfdist.dialects.writing.unsupported import cannot, difference
from tfdist.errors import ClusterError, Source

_ALWAYS = ("nworker_groups", "nserver_groups", "nworkers_per_group", "nservers_per_group")


def write(cluster: Cluster) -> str:
    """Returns the cluster block, and what precedes it: the partition of the network, and `gpu`. `write_hostfile` has the hosts.

    Raises:
        ClusterError: if ClusterProto has no words for the cluster.
    """
    text = _text(cluster, min((task.port for task in cluster.tasks if task.port is not None), default=None))
    hosts = _hosts(cluster)
    # Reading it back, with the same hosts, shows what the fields cannot express.
    if name := difference(cluster, _read(text, hosts)):
        raise _cannot(cluster, _DIFFERENCES.get(name, f"{name} {shown(getattr(cluster, name))}"))
    return text


def write_hostfile(cluster: Cluster) -> str:
    """Returns the host file that belongs to `write(cluster)`: the host of each process, in order.

    Raises:
        ClusterError: if ClusterProto has no words for the cluster, or the hosts of the cluster are open.
    """
    write(cluster)
    hosts = _hosts(cluster)
    if not hosts:
        raise _cannot(cluster, "a cluster whose hosts are open in a host file")
    return "".join(f"{host}\n" for host in hosts)


_DIFFERENCES = {
    "tasks": "addresses that differ from its layout (ports count up per host from one start_port, hosts go round)",
    "worker_groups": "worker groups that are not runs of consecutive workers",
    "server_groups": "server groups that are not runs of consecutive servers",
    "partition": "this partition of a model: it has layers, by the last axis, over the workers of a group",
    "separate_servers": "servers in the workers' processes, without servers",
}


def _cannot(cluster: Cluster, meaning: str) -> ClusterError:
    return cannot(cluster, "SINGA", meaning)


def _text(cluster: Cluster, start_port: int | None) -> str:
    workers, servers = cluster.job("worker"), cluster.job("ps")
    for job in ("chief", "evaluator"):
        if cluster.job(job):
            raise _cannot(cluster, f"a {job}")
    if cluster.partial or not workers:
        raise _cannot(cluster, "a part of a cluster")
    fields: dict[str, object] = {
        "nworker_groups": len(cluster.worker_groups),
        "nserver_groups": len(cluster.server_groups),
        "nworkers_per_group": _same(cluster, "worker groups of different sizes", map(len, cluster.worker_groups)),
        "nworkers_per_procs": _same(cluster, "worker tasks of different sizes", (task.slots for task in workers)),
        "workspace": cluster.job_dir or "",
        "sync_freq": cluster.sync_period,
        "share_memory": cluster.share_memory,
    }
    if servers and not cluster.separate_servers and len(cluster.worker_groups) == len(cluster.server_groups) == 1:
        raise _cannot(cluster, "servers in the processes of one worker group: there it means AllReduce, without servers")
    if servers:
        fields["nservers_per_group"] = _same(cluster, "server groups of different sizes", map(len, cluster.server_groups))
        fields["nservers_per_procs"] = _same(cluster, "ps tasks of different sizes", (task.slots for task in servers))
        fields["server_worker_separate"] = cluster.separate_servers
    elif len(cluster.worker_groups) == 1:
        # AllReduce: every process holds one server.
        fields["nserver_groups"], fields["nservers_per_group"] = 1, len(workers)
    lines = []
    for name, (_, kind, default) in CLUSTER_FIELDS.items():
        value = start_port if name == "start_port" else fields.get(name)
        text = _value(kind, value)
        if value is not None and (name in _ALWAYS or text != _value(kind, default) or name == "start_port"):
            lines.append(f"  {name}: {text}\n")
    gpus = _same(cluster, "worker tasks with different numbers of GPUs", (task.gpus for task in workers))
    net = write_net(cluster.partition.layouts)
    return net + "".join(f"gpu: {number}\n" for number in range(gpus)) + "cluster {\n" + "".join(lines) + "}\n"


def _value(kind: str, value: object) -> str:
    if kind != "string":
        return str(value).lower()
    # Octal escapes of the bytes, which every text proto parser reads alike.
    plain = (
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in str(value).encode(errors="replace")
    )
    return '"' + "".join(plain) + '"'


def _same(cluster: Cluster, otherwise: str, numbers: Iterable[int]) -> int:
    distinct = set(numbers)
    if len(distinct) != 1:
        raise _cannot(cluster, otherwise)
    return distinct.pop()


def _hosts(cluster: Cluster) -> list[str]:
    """Returns the host of each process in order; empty if hosts are open."""
    workers, servers = cluster.job("worker"), cluster.job("ps")
    processes: list[Task] = [*workers, *servers] if cluster.separate_servers else [*workers, *servers[len(workers) :]]
    hosts = [task.host for task in processes if task.host is not None]
    return hosts if len(hosts) == len(processes) else []


def _read(text: str, hosts: list[str]) -> Cluster:
    layout = read_layout(text, Source(NAME, "<text>"))
    layout.check()
    return layout.cluster(hosts)
