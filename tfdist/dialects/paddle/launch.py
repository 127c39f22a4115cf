"""The command lines of Paddle 2's launcher, `python -m paddle.distributed.launch` and `fleetrun`.

Sources of the rules: Paddle `python/paddle/distributed/launch/context/args_envs.py` @ 076ae7ef (options and defaults),
`launch/controllers/ps.py` @ 12f70db6 (conditions of parameter server mode), and the options of 2.2 that were removed later.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdist.cluster import Cluster, Task
from tfdist.dialects.paddle.addresses import addresses, is_synchronous
from tfdist.dialects.parsing.addresses import launcher_address
from tfdist.dialects.parsing.command_line import check_count, check_places, names, nodes, options
from tfdist.dialects.parsing.document import shown
from tfdist.dialects.parsing.machine_gpus import visible_gpus
from tfdist.dialects.parsing.values import Values
from tfdist.errors import ClusterError, Source
from tfdist.rank_info import RankInfo, Store, UnplacedError

START_PORT = 6070

_VALUED = names(
    "master legacy rank log_level log_overwrite sort_ip enable_gpu_log nnodes nproc_per_node log_dir run_mode job_id "
    "devices gpus npus xpus host ips start_port auto_parallel_config auto_cluster_config auto_tuner_json servers "
    "trainers trainer_num server_num gloo_port with_gloo max_restart elastic_level elastic_timeout mode workers "
    "worker_num http_port heter_workers heter_worker_num heter_devices backend selected_gpus cluster_node_ips node_ip "
    "started_port print_config"
)
_OLDER = {
    "workers": "trainers",
    "worker_num": "trainer_num",
    "selected_gpus": "gpus",
    "cluster_node_ips": "ips",
    "node_ip": "host",
    "started_port": "start_port",
}
"""Options of 2.2 and 1.x, and what they are called now."""

FIRST_PORT = 6170
"""Where the ports of addresses without one begin."""
_DEVICES = ("devices", "gpus", "npus", "xpus")


def parse_command(words: list[str], source: Source, environ: Mapping[str, str]) -> Cluster | RankInfo:
    """Reads a command line of the launcher.

    Returns:
        A Cluster if the command line names the hosts or has one node; else the RankInfo of the first rank of this node.

    Raises:
        ClusterError: for an elastic `--nnodes 1:4`, for several nodes without `--master`, and for servers on several nodes
            without their addresses, which Paddle assigns only when it runs.
        UnplacedError: for several nodes without `--rank`, which Paddle assigns then, too, or with shell variables in it or in
            the address of the master.
    """
    switches = names("module use_paddlecloud log_overwrite")
    given = options(words[1:], source, _VALUED - switches, switches, letters={"m": "module"}, abbreviates=True)
    values = _Renamed(source, {_OLDER.get(name, name): text for name, text in given.texts.items()}, "--", given.texts)
    for name in ("heter_workers", "heter_worker_num", "heter_devices"):
        if values.text(name) not in ("", "0"):
            raise values.error(name, "heterogeneous trainers are not supported; give servers and trainers alone")
    mode = values.text("run_mode") or (
        "ps" if any(map(values.text, ("servers", "trainers", "server_num", "trainer_num"))) else ""
    )
    if mode not in ("", "ps", "collective"):
        raise values.error("run_mode", f"{shown(mode)} is not supported; expected collective or ps")
    return _servers(values) if mode == "ps" else _collective(values, environ)


@dataclass(frozen=True)
class _Renamed(Values):
    """Options under their present names. Messages have the names that were given."""

    given: Mapping[str, str] = field(default_factory=dict)

    def error(self, name: str, message: str) -> ClusterError:
        older = next((old for old, new in _OLDER.items() if new == name and old in self.given and name not in self.given), name)
        return super().error(older, message)


def _trainers(values: Values, servers: int) -> list[tuple[str, int]]:
    """Returns the addresses of `--trainers`.

    If one has no port, all get ports in order behind those of the servers, as in Paddle 2.2 (`fleet/launch_utils.py`).
    """
    parts = [part.strip() for part in values.text("trainers").split(",") if part.strip()]
    if all(":" in part for part in parts):
        return addresses(values, "trainers")
    hosts = [part.partition(":")[0] for part in parts]
    numbered = ",".join(f"{host}:{FIRST_PORT + servers + index}" for index, host in enumerate(hosts))
    return addresses(dataclasses.replace(values, texts={**values.texts, "trainers": numbered}), "trainers")


def _servers(values: Values) -> Cluster:
    if values.text("servers") and values.text("trainers"):
        servers: list[tuple[str | None, int | None]] = [*addresses(values, "servers")]
        trainers: list[tuple[str | None, int | None]] = [*_trainers(values, len(servers))]
    else:
        count = nodes(values, "1")
        missing = next((name for name in ("servers", "trainers") if not values.text(name)), "servers")
        if count > 1 or values.text("servers") or values.text("trainers"):
            raise values.error(
                missing, "the addresses of all servers and all trainers are needed; give --servers and --trainers"
            )
        servers = [(None, None)] * values.number("server_num", 1, least=1)
        trainers = [(None, None)] * values.number("trainer_num", 1, least=1)
    workers = tuple(Task("worker", index, *where) for index, where in enumerate(trainers))
    groups = (tuple(range(len(workers))),) if is_synchronous(values, "mode") else ()
    ps = tuple(Task("ps", index, *where) for index, where in enumerate(servers))
    return Cluster((*workers, *ps), worker_groups=groups, source=values.source)


def _collective(values: Values, environ: Mapping[str, str]) -> Cluster | RankInfo:
    devices = next((values.text(name) for name in _DEVICES if values.text(name)), "")
    # Without them Paddle takes the GPUs of CUDA_VISIBLE_DEVICES, else all of a node.
    on_machine = len(devices.split(",")) if devices else visible_gpus(environ) or 1
    processes = values.number("nproc_per_node", on_machine, least=1)
    gpus = int(bool(values.text("gpus")))
    start_port = values.port("start_port", START_PORT)
    if values.text("ips"):
        hosts = [host.strip() for host in values.text("ips").split(",")]
        check_count(values, "ips", len(hosts) * processes)
        if start_port + processes > 65536:
            raise values.error("start_port", f"{start_port} leaves too few ports below 65536 for {processes} processes")
        where = [launcher_address(values, "ips", host, start_port + index) for host in hosts for index in range(processes)]
        return Cluster(tuple(Task("worker", rank, *each, gpus=gpus) for rank, each in enumerate(where)), source=values.source)
    count = nodes(values, "1")
    check_count(values, "nnodes", count * processes)
    if count == 1:
        return Cluster(tuple(Task("worker", rank, gpus=gpus) for rank in range(processes)), source=values.source)
    master = values.texts.get("master", "")
    if not master or "://" in master.removeprefix("http://"):
        raise values.error("master", f"{count} nodes need a place to meet; give host:port of the first node")
    outline = RankInfo(count * processes, 0, values.source, gpus=gpus).outline()
    if not values.texts.get("rank"):
        fault = values.error(
            "rank",
            f"without it Paddle gives out the ranks of {count} nodes only when it runs; start the program with this command "
            "and call tfdist.strategy() without a description, or number the nodes from 0",
        )
        raise UnplacedError(fault, outline)
    check_places(values, ("master", "rank"), outline)
    return RankInfo(
        size=count * processes,
        rank=values.number("rank", most=count - 1) * processes,
        source=values.source,
        store=Store("tcp", *launcher_address(values, "master", master)),
        run_id=values.text("job_id", "default"),
        local_rank=0,
        local_size=processes,
        gpus=gpus,
        host=values.text("host") or None,
    )
