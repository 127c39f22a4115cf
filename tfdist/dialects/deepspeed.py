"""DeepSpeed: the command lines of its launcher, with their host file.

Source of the rules: deepspeedai/DeepSpeed 0.17 `deepspeed/launcher/runner.py`. The host file is that of Open MPI. Every
chosen GPU is one process, and all of them step together.
"""

import os
import re
from collections.abc import Mapping

from tfdist.cluster import Cluster, Task
from tfdist.dialects.dialect import CommandReader, Dialect
from tfdist.dialects.horovod.hosts import merged, parse_hostfile
from tfdist.dialects.parsing.command_line import check_count, names, options
from tfdist.dialects.parsing.document import MAX_GPUS_PER_TASK, read_text, shown
from tfdist.dialects.parsing.machine_gpus import visible_gpus
from tfdist.dialects.parsing.values import Values
from tfdist.errors import Source

NAME = "deepspeed"

DEFAULT_HOSTFILE = "/job/hostfile"

_VALUED = names(
    "hostfile include exclude num_nodes min_elastic_nodes max_elastic_nodes num_gpus num_accelerators master_port "
    "master_addr node_rank launcher launcher_args enable_each_rank_log autotuning bind_core_list ssh_port venv_script "
    "log_level"
)
_SWITCHES = names(
    "module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid elastic_training bind_cores_to_rank quiet help"
)
_NODE = re.compile(r"([\w.-]+)(?::([0-9]{1,4}(?:,[0-9]{1,4})*))?", re.ASCII)

Slots = dict[str, list[int]]
"""The numbers of the GPUs on each host."""


def parse_command(words: list[str], source: Source, environ: Mapping[str, str]) -> Cluster:
    """Reads a command line of the launcher. Of the variables, CUDA_VISIBLE_DEVICES counts.

    Raises:
        ClusterError: for bad options, and where only the machine knows the number of its GPUs.
    """
    letters = {"H": "hostfile", "i": "include", "e": "exclude", "q": "quiet"}
    values = options(words[1:], source, _VALUED, _SWITCHES, letters=letters, abbreviates=True)
    if values.flag("elastic_training"):
        raise values.error("elastic_training", "multi_worker_mirrored keeps its tasks; give the number of nodes")
    limit_name = "num_gpus" if values.text("num_gpus") else "num_accelerators"
    limit = values.number(limit_name, 0, least=1, most=MAX_GPUS_PER_TASK)
    file = values.text("hostfile") or (DEFAULT_HOSTFILE if os.path.exists(DEFAULT_HOSTFILE) else "")
    hosts = _of_file(file, values) if file else _of_machine(values, limit, environ)
    hosts = _filtered(hosts, values)
    nodes = values.number("num_nodes", 0)
    if nodes > len(hosts):
        raise values.error("num_nodes", f"{nodes} nodes are asked for, and {len(hosts)} are named; name them with --hostfile")
    chosen = list(hosts.items())[: nodes or None]
    short = next((host for host, slots in chosen if limit > len(slots)), None)
    if short is not None:
        raise values.error(limit_name, f"{limit} GPUs are asked for, and {short} has {len(hosts[short])} slots")
    places = [None if host == "localhost" and not file else host for host, slots in chosen for _ in slots[: limit or None]]
    check_count(values, "num_gpus", len(places))
    return Cluster(tuple(Task("worker", rank, host, gpus=1) for rank, host in enumerate(places)), source=source)


def _of_file(name: str, values: Values) -> Slots:
    if not os.path.exists(name):
        raise values.error(
            "hostfile",
            f"there is no file {shown(name, 200)}; DeepSpeed would train on this machine alone: for that, leave the option out",
        )
    file = Source(NAME, name[:250])
    return {host: list(range(count)) for host, count in merged(parse_hostfile(read_text(name, file), file))}


def _of_machine(values: Values, limit: int, environ: Mapping[str, str]) -> Slots:
    """Returns the GPUs of the one machine: as many as the options say, or CUDA_VISIBLE_DEVICES, or as this machine has."""
    named = [int(gpu) for gpu in re.findall(r"[:,]([0-9]{1,4})\b", values.text("include"))]
    count = limit or len(named) or visible_gpus(environ)
    if not count and values.number("num_nodes", 1) < 2:
        raise values.error(
            "num_gpus", "DeepSpeed takes all GPUs of the machine, and this one has none that tfdist knows; give their number"
        )
    return {"localhost": named if named and not limit else list(range(count))}


def _filtered(hosts: Slots, values: Values) -> Slots:
    """Returns the hosts and GPUs that `--include host@host:0,2` names, or those that `--exclude` leaves."""
    if values.text("include") and values.text("exclude"):
        raise values.error("exclude", "DeepSpeed takes --include or --exclude, not both")
    name = "include" if values.text("include") else "exclude"
    if not values.text(name):
        return hosts
    given: dict[str, list[int] | None] = {}
    for part in values.text(name).split("@"):
        match = _NODE.fullmatch(part.strip())
        if match is None or match[1] not in hosts:
            raise values.error(name, f"{shown(part)} is none of the hosts {', '.join(list(hosts)[:5])}; expected host@host:0,2")
        slots = [int(slot) for slot in match[2].split(",")] if match[2] else None
        if missing := [slot for slot in slots or () if slot not in hosts[match[1]]]:
            raise values.error(name, f"{match[1]} has no GPU {missing[0]}; it has {len(hosts[match[1]])}")
        given[match[1]] = slots
    if name == "include":
        left = {host: hosts[host] if given[host] is None else sorted(set(given[host] or ())) for host in hosts if host in given}
    else:
        gone = {host: set(hosts[host] if slots is None else slots) for host, slots in given.items()}
        left = {host: [slot for slot in slots if slot not in gone.get(host, ())] for host, slots in hosts.items()}
    left = {host: slots for host, slots in left.items() if slots}
    if not left:
        raise values.error(name, "it leaves no GPU")
    return left


DIALECT = Dialect(
    name=NAME,
    title="DeepSpeed",
    example="a command line of DeepSpeed (deepspeed --hostfile hosts train.py)",
    command=CommandReader(("deepspeed", "deepspeed.launcher.runner"), parse_command, reads_variables=True),
)
