"""PyTorch: the variables of `env://`, and the command lines of torchrun and of `python -m torch.distributed.launch`.

Sources of the rules: pytorch `torch/distributed/rendezvous.py` @ 0140b62d, `torch/distributed/run.py` @ 010929fd and of torch
2.15, `torch/distributed/argparse_util.py` @ 0734fe09; kubeflow/training-operator v1.9 `pkg/controller.v1/pytorch/envvar.go`;
kubeflow/trainer `pkg/runtime/framework/plugins/torch/torch.go` @ 06b555d6.

All processes step together (DistributedDataParallel): rank r is `worker:r`. WORLD_SIZE counts processes. Some pages call it the
number of nodes, which is the same if every node runs one process.
"""

import os
import re
from collections.abc import Mapping

from tfdist.cluster import Cluster, Task
from tfdist.dialects.dialect import CommandReader, Dialect, EnvironmentReader
from tfdist.dialects.horovod.environment import recognizes as has_mpi_rank
from tfdist.dialects.parsing.addresses import launcher_address
from tfdist.dialects.parsing.command_line import check_count, check_places, names, nodes, options
from tfdist.dialects.parsing.document import MAX_TASKS, shown
from tfdist.dialects.parsing.machine_gpus import visible_gpus
from tfdist.dialects.parsing.values import Values
from tfdist.dialects.slurm.environment import recognizes as has_slurm_rank
from tfdist.errors import ClusterError, Source
from tfdist.rank_info import RankInfo, Store, UnplacedError

NAME = "pytorch"

MASTER_PORT = 29500

AGENT_PORTS = 8
"""torchrun's agent listens on MASTER_PORT. The store is at the first free one of this many ports next to it."""

_VALUED = names(
    "nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf max_restarts monitor_interval start_method "
    "event_log_handler role log_dir redirects tee log_line_prefix_template local_ranks_filter duplicate_stdout_filters "
    "duplicate_stderr_filters node_rank master_addr master_port local_addr logs_specs numa_binding signals_to_handle "
    "shutdown_timeout print_completion"
)
_SWITCHES = names("standalone module no_python run_path use_env virtual_local_rank")
_LETTERS = {"m": "module", "r": "redirects", "t": "tee"}
_POD = ("PET_MASTER_ADDR", "PET_NNODES", "PET_NODE_RANK")
"""Variables that every pod of a TrainJob has."""


def parse_command(words: list[str], source: Source, environ: Mapping[str, str]) -> Cluster | RankInfo:
    """Reads a command line of torchrun. A missing option may be in the environment: PET_NNODES for `--nnodes`.

    On one host the result is a Cluster with one worker for each process. On several it is the RankInfo of the first process on
    this node: the processes of all nodes are the ranks, and meet at the master.

    Raises:
        ClusterError: for options that torchrun refuses, and for an elastic `--nnodes 1:4`.
        UnplacedError: for several nodes with `--rdzv-backend c10d`, whose ranks torchrun assigns when it runs, or with shell
            variables in the address of the master or the rank of the node.
    """
    given = options(words[1:], source, _VALUED, _SWITCHES, letters=_LETTERS, abbreviates=True)
    inherited = {name: environ[f"PET_{name.upper()}"] for name in _VALUED | _SWITCHES if environ.get(f"PET_{name.upper()}")}
    values = Values(source, {**inherited, **given.texts}, "--")
    count = 1 if values.flag("standalone") else nodes(values, "1:1")
    processes = _processes(values, environ)
    check_count(values, "nnodes", count * processes)
    if count == 1:
        return Cluster(tuple(Task("worker", rank) for rank in range(processes)), source=source)
    outline = RankInfo(count * processes, 0, source).outline()
    backend = values.text("rdzv_backend", "static")
    if backend != "static":
        fault = values.error(
            "rdzv_backend",
            f"{shown(backend)} gives out the ranks of {count} nodes only when it runs; start the program with this command and "
            "call tfdist.strategy() without a description, or use --node-rank and --master-addr",
        )
        raise UnplacedError(fault, outline)
    check_places(values, ("node_rank", "rdzv_endpoint", "master_addr", "master_port"), outline)
    node = values.number("node_rank", 0, most=count - 1)
    endpoint = values.text("rdzv_endpoint")
    if endpoint:
        host, port = launcher_address(values, "rdzv_endpoint", endpoint, MASTER_PORT)
    else:
        host, port = values.host("master_addr", "127.0.0.1"), values.port("master_port", MASTER_PORT)
    return RankInfo(
        size=count * processes,
        rank=node * processes,
        source=source,
        store=Store("tcp", host, port),
        run_id=values.texts.get("rdzv_id") or "none",  # Any text will do, if it is the same on all nodes.
        local_rank=0,
        local_size=processes,
        host=values.host("local_addr") or None,
    )


def stated_processes(words: list[str], source: Source) -> int | None:
    """Returns the number behind `--nproc-per-node` of a command line of torchrun; None if there is none, or a word."""
    try:
        texts = options(words[1:], source, _VALUED, _SWITCHES, letters=_LETTERS, abbreviates=True).texts
    except ClusterError:  # Options of another version.
        return None
    number = texts.get("nproc_per_node", "")
    return int(number) if re.fullmatch("[1-9][0-9]{0,8}", number) else None


def recognizes(environ: Mapping[str, str]) -> str | None:
    """Returns the variable of the master, or None.

    A master without ranks does not count: job scripts set it for srun. Many set WORLD_SIZE, too, and their programs take the
    rank from srun or mpirun. A pod of Kubeflow's Trainer has torchrun's PET_ variables alone.
    """
    master = next((name for name in ("MASTER_ADDR", "MASTER_PORT") if environ.get(name)), None)
    if environ.get("RANK"):
        return master
    if has_slurm_rank(environ) or has_mpi_rank(environ):
        return None
    if master and environ.get("WORLD_SIZE"):
        return master
    return _POD[0] if all(map(environ.get, _POD)) else None


def from_environ(environ: Mapping[str, str]) -> Cluster | RankInfo:
    """Reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and LOCAL_*, as torchrun, Kubeflow's PyTorchJob or a user sets them.

    In a PyTorchJob with several processes per node, and in a TrainJob, a program that runs without torchrun is alone on its
    node. Its rank is then the node's rank, and the processes become slots.

    Raises:
        ClusterError: for missing, bad or contradictory variables.
    """
    if recognizes(environ) == _POD[0]:
        return _of_pod(Values(Source(NAME, _POD[0]), environ))
    values = Values(Source(NAME, "MASTER_ADDR"), environ)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        if not values.text(name):
            raise values.error(
                name,
                "the variable is not set, and others of PyTorch's env:// are; all of RANK, WORLD_SIZE, MASTER_ADDR and "
                "MASTER_PORT are needed",
            )
    size = values.number("WORLD_SIZE", least=1)
    rank, slots = values.number("RANK"), 1
    by_node = not values.text("LOCAL_RANK") and values.text("PET_NODE_RANK") and values.text("PET_NPROC_PER_NODE").isdecimal()
    if by_node:
        slots = values.number("PET_NPROC_PER_NODE", least=1)
        rank = values.number("PET_NODE_RANK")
        if size % slots:
            raise values.error("WORLD_SIZE", f"{size} is no multiple of PET_NPROC_PER_NODE, {slots}; it counts processes")
        size //= slots
    if rank >= size:
        raise values.error(
            "PET_NODE_RANK" if by_node else "RANK",
            f"{rank} is too high for {size} {'nodes' if by_node else 'processes'}; ranks count from 0 to WORLD_SIZE - 1, and "
            "WORLD_SIZE counts processes, not nodes",
        )
    return _ranked(values, size, rank, slots)


def _of_pod(values: Values) -> RankInfo:
    """Returns the rank of a pod with torchrun's PET_ variables alone: that of its node."""
    size = values.number("PET_NNODES", least=1)
    processes = values.text("PET_NPROC_PER_NODE")
    is_counted = not processes.isdecimal()  # `auto`, `gpu`: torchrun counts on the machine.
    slots = 1 if is_counted else values.number("PET_NPROC_PER_NODE", least=1, most=MAX_TASKS // size)
    return RankInfo(
        size=size,
        rank=values.number("PET_NODE_RANK", most=size - 1),
        source=values.source,
        store=Store("tcp", values.host("PET_MASTER_ADDR"), values.port("PET_MASTER_PORT", MASTER_PORT)),
        slots=slots,
    )


def _ranked(values: Values, size: int, rank: int, slots: int) -> RankInfo:
    local_size = values.number("LOCAL_WORLD_SIZE", least=1, most=size) if values.text("LOCAL_WORLD_SIZE") else None
    local_rank = values.number("LOCAL_RANK", most=(local_size or size) - 1) if values.text("LOCAL_RANK") else None
    if local_rank is not None and local_rank > rank:
        raise values.error("LOCAL_RANK", f"{local_rank} is higher than RANK, {rank}; a host's processes have ranks in a row")
    host, port = values.host("MASTER_ADDR"), values.port("MASTER_PORT")
    run = "#".join(values.text(name) for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT") if values.text(name))
    return RankInfo(
        size=size,
        rank=rank,
        source=values.source,
        store=_store(host, port, values.text("TORCHELASTIC_USE_AGENT_STORE") == "True"),
        run_id=run,
        local_rank=local_rank,
        local_size=local_size,
        slots=slots,
    )


def _store(host: str, port: int, is_agents: bool) -> Store:
    """Returns the store at the master; next to the master's port if torchrun's agent serves its own store there."""
    if not is_agents:
        return Store("tcp", host, port)
    return Store("tcp", host, port + 1 if port + AGENT_PORTS <= 65535 else port - AGENT_PORTS, ports=AGENT_PORTS)


def _processes(values: Values, environ: Mapping[str, str]) -> int:
    text = values.text("nproc_per_node", "1")
    gpus = visible_gpus(environ) if text in ("gpu", "auto") else 0
    if text == "gpu" and not gpus:
        raise values.error("nproc_per_node", "gpu asks for one process per GPU, and this machine has none")
    if gpus:
        return gpus
    if text in ("cpu", "auto"):
        return os.cpu_count() or 1
    if text == "xpu":
        raise values.error("nproc_per_node", "xpu counts Intel's devices, which tfdist cannot; give a number")
    return values.number("nproc_per_node", 1, least=1)


DIALECT = Dialect(
    name=NAME,
    title="PyTorch",
    example="a command line of torchrun (torchrun --nnodes 2 --node-rank 0 --master-addr host train.py)",
    command=CommandReader(
        ("torchrun", "torch.distributed.run", "torch.distributed.launch"), parse_command, reads_variables=True
    ),
    environment=EnvironmentReader(recognizes, from_environ),
)
