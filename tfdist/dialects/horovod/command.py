"""The command lines of horovodrun and mpirun: the number of ranks, and their hosts.

The options are those of horovod/horovod v0.28.1 `runner/launch.py`, of Open MPI 4.1 and 5.0 `mpirun(1)` and of MPICH's hydra.
An unknown option is refused: without knowing its values, the start of the user's program cannot be found. Horovod's Gloo
launcher starts all slots for an `-np` below their number; here `-np` counts, as documented.
"""

import re
from collections import Counter
from collections.abc import Sequence

from tfdist.cluster import Cluster, Task
from tfdist.dialects.horovod import site_launchers
from tfdist.dialects.horovod.hosts import (
    Hosts,
    cluster_of,
    merged,
    merged_neighbors,
    one_by_one,
    parse_hostfile,
    parse_hosts,
    without_slots,
)
from tfdist.dialects.parsing.command_line import (
    HYDRAS,
    MPI_PROGRAMS,
    PREPARES,
    check_places,
    check_single,
    check_variable,
    full_name,
    names,
)
from tfdist.dialects.parsing.document import MAX_TASKS, read_text, shown
from tfdist.dialects.parsing.values import Values
from tfdist.errors import ClusterError, Source, UnstatedError, nearest

PROGRAMS = ("horovodrun", "horovod.runner.launch", *MPI_PROGRAMS, *site_launchers.PROGRAMS)

_NAMES = {
    "np": "np n c num-proc",
    "hosts": "H host hosts",
    "hostfile": "hostfile machinefile f default-hostfile",
    "min": "min-np min-num-proc",
    "max": "max-np max-num-proc",
    "script": "host-discovery-script",
    "per_host": "N npernode ppn perhost",
    "map": "map-by",
    "rank": "rank-by",
}
_MEANINGS = {option: meaning for meaning, options in _NAMES.items() for option in options.split()}

_HOROVOD_ALONE = names(
    "v version cb check-build disable-cache verbose hierarchical-allreduce no-hierarchical-allreduce hierarchical-allgather "
    "no-hierarchical-allgather torus-allreduce no-torus-allreduce autotune no-autotune timeline-mark-cycles "
    "no-timeline-mark-cycles no-stall-check stall-check mpi-threads-disable no-mpi-threads-disable tcp log-with-timestamp "
    "log-without-timestamp prefix-timestamp prefix-output-with-timestamp log-hide-timestamp no-log-hide-timestamp gloo mpi "
    "jsrun"
)
_HOROVOD_WITH_VALUE = names(
    "np num-proc H hosts hostfile min-np min-num-proc max-np max-num-proc host-discovery-script start-timeout "
    "network-interfaces network-interface output-filename config-file p ssh-port i ssh-identity-file fusion-threshold-mb "
    "cycle-time-ms cache-capacity autotune-log-file autotune-warmup-samples autotune-steps-per-sample "
    "autotune-bayes-opt-max-samples autotune-gaussian-process-noise slots-per-host elastic-timeout reset-limit "
    "timeline-filename stall-check-warning-time-seconds stall-check-shutdown-time-seconds mpi-args binding-args "
    "num-nccl-streams thread-affinity gloo-timeout-seconds log-level"
)
_HOROVOD_VALUES = dict.fromkeys(_HOROVOD_WITH_VALUE, 1) | {"blacklist-cooldown-range": 2}

_MPI_ALONE = names(
    "allow-run-as-root oversubscribe nooversubscribe tag-output timestamp-output display-map display-allocation "
    "display-topo report-bindings q quiet v verbose bind-to-core bind-to-none bind-to-socket use-hwthread-cpus "
    "genvall envall genvnone envnone l prepend-rank enable-recovery disable-recovery do-not-launch xml novm tune-off "
    "byslot bynode pernode leave-session-attached print-rank-map no-vni rsh ssh export export-all"
)
_MPI_WITH_VALUE = names(
    "np n c H host hosts hostfile machinefile f default-hostfile N npernode ppn perhost map-by bind-to rank-by x wdir wd path "
    "prefix genvlist envlist output-filename am tune timeout stdin bootstrap bootstrap-exec launcher iface outfile-pattern "
    "errfile-pattern launch-agent cpu-set cpu-list ompi-server report-pid report-uri personality merge-stderr-to-stdout rmk "
    "npersocket cpus-per-proc host-arg configfile app rankfile rf bind depth cpu-bind mem-bind gpu-bind pmi output display"
)
_MPI_SHORT = {"pernode": {"per_host": "1"}, "bynode": {"map": "node"}}
"""Switches of Open MPI that stand for options with a value, by meaning."""

_MCA = ("mca", "gmca", "omca", "prtemca")
_PARAMETERS = {
    "rmaps_base_mapping_policy": "map-by",
    "rmaps_default_mapping_policy": "map-by",
    "rmaps_base_ranking_policy": "rank-by",
    "rmaps_default_ranking_policy": "rank-by",
    "orte_default_hostfile": "default-hostfile",
    "prte_default_hostfile": "default-hostfile",
}
"""Parameters of Open MPI 4 and 5, and the options that they stand for."""

_MPI_VALUES = dict.fromkeys(_MPI_WITH_VALUE, 1) | dict.fromkeys(("mca", "gmca", "omca", "pmixmca", "prtemca", "genv", "env"), 2)
_NODE_FILE = re.compile(r"\$\{?(?:PBS_NODEFILE|LSB_DJOB_HOSTFILE|PE_HOSTFILE)\}?|\$\{?TMPDIR\}?/machines", re.ASCII)
"""The file in which a scheduler has the nodes of a job."""
_PLACES = {"hosts": "-H", "hostfile": "--hostfile"}
_NUMBERS = {"np": "-np", "min": "--min-np", "max": "--max-np", "per_host": "-N"}
_BY_HOST = ("slot", "core", "socket", "hwthread", "numa", "l1cache", "l2cache", "l3cache", "board", "package")
_RANK_ORDERS = (*_BY_HOST, "fill", "node")
_MODIFIERS = ("oversubscribe", "span", "nolocal")
"""Modifiers of a mapping that change the hosts of ranks. Open MPI takes any unique beginning of them."""
_MPI_REFUSED = ("app", "configfile", "rankfile", "rf")


def parse_command(words: list[str], source: Source) -> Cluster:
    """Returns the cluster of a command line. Raises ClusterError if it does not give the number of ranks and their hosts."""
    if words[0] in site_launchers.PROGRAMS:
        return site_launchers.parse_command(words, source)
    return cluster_of(_ranks(words, source), source)


def prepares(words: Sequence[str]) -> bool:
    """Returns whether a command line starts a program that does not train, `jsrun -n 2 cp data /scratch`."""
    try:
        options = site_launchers.options if words[0] in site_launchers.PROGRAMS else _options
        program = words[options(list(words), Source("horovod", ""))[1] :]
    except ClusterError:
        return False
    return bool(program) and program[0] in PREPARES - {"env"}


def stated_processes(words: list[str], source: Source, nodes: int) -> int | None:
    """Returns the number of processes of a command line of mpirun or horovodrun on `nodes` hosts that it does not name; None if
    that cannot be read, or has none."""
    try:
        options, _ = _options(words, source)
        if "np" in options:
            return _number(options, "np", source)
        per_host = _mapping(options, source)[1]
        if per_host is None or options.keys() & _PLACES.keys():
            return None
        return nodes * _number({"per_host": per_host}, "per_host", source)
    except ClusterError:
        return None


def _ranks(words: list[str], source: Source) -> list[str]:
    """Returns the host of each rank."""
    is_horovod = words[0].startswith("horovod")
    options, _ = _options(words, source)
    if is_horovod:
        _check_elastic(options, source)
    if words[0] == "mpirun_rsh" and "hostfile" not in options:
        raise source.error("mpirun_rsh takes the hosts before its program; name them in a file", field="-hostfile")
    limit = _number(options, "np", source) if "np" in options else None
    if limit is not None:
        places = {written: options.get(name, "") for name, written in _PLACES.items()}
        workers = tuple(Task("worker", rank) for rank in range(limit))
        check_places(Values(source, places, ""), places, Cluster(workers, source=source))
    elif _NODE_FILE.fullmatch(options.get("hostfile", "")):
        del options["hostfile"]  # The job says how many processes start.
    hosts = _hosts(options, source)
    if limit is None and is_horovod:
        raise source.error("the number of processes is missing; horovodrun needs it, -np 4", field="-np")
    if hosts is None:
        if limit is None and (per_host := _mapping(options, source)[1]) is not None:
            count = _number({"per_host": per_host}, "per_host", source)
            fault = source.error(f"{count} processes start on each node, and no nodes are named; write -np 8 too", field="-N")
            raise UnstatedError(*fault.args, per_node=count)
        if limit is None:
            fault = source.error("neither processes nor hosts are given; write -np 4, or -H a:2,b:2", field="-np")
            raise UnstatedError(*fault.args)
        return ["localhost"] * limit
    if not is_horovod and "hydra" not in options and "hostfile" in options:
        _check_slots(hosts, limit, options, source)
    return _placed(hosts, limit, options, source)


def _options(words: list[str], source: Source) -> tuple[dict[str, str], int]:
    """Returns the launcher's own options by meaning, and the position of the user's program."""
    options: dict[str, str] = {"hydra": ""} if words[0] in HYDRAS else {}
    is_horovod = words[0].startswith("horovod")
    alone, values = (_HOROVOD_ALONE, _HOROVOD_VALUES) if is_horovod else (_MPI_ALONE, _MPI_VALUES)
    position = 1
    while position < len(words):
        check_variable(words[position], source)
        if not words[position].startswith("-") or words[position] in ("-", "--"):
            break
        written, equals, value = words[position].partition("=")
        name = written.lstrip("-").replace("_", "-")
        if is_horovod and written.startswith("--"):
            name = full_name(name, alone | values.keys(), source)  # As argparse does it: `--slots 4`.
        position += 1
        if name in alone and not equals:
            options |= {name: "", **_MPI_SHORT.get(name, {})}
            continue
        if name not in values:
            raise source.error(
                f"{shown(written)} is not a known option of {words[0]}, so the program after it cannot be "
                f"found{nearest(name, [*alone, *values])}"
            )
        count = values[name] - bool(equals)
        if name in ("env", "genv") and count == 2 and "=" in "".join(words[position : position + 1]):
            count = 1  # Hydra and Intel MPI take `-genv A=1` and `-genv A 1`, PALS takes `--env A=1`.
        if position + count > len(words):
            raise source.error("the value of this option is missing", field=written)
        _add(options, name, value if equals else words[position], written, source, is_horovod)
        if name in _MCA and count == 2 and (parameter := words[position]) in _PARAMETERS:
            _add(options, _PARAMETERS[parameter], words[position + 1], f"{written} {parameter}", source, is_horovod)
        if name in ("env", "genv") and words[position].startswith("I_MPI_"):
            options["intel"] = ""
        position += count
    check_single(words[position:], source)
    if ":" in words[position:]:
        raise source.error("the command line starts several programs (`:`); tfdist runs one program on every task")
    for name in _MPI_REFUSED:
        if name in options:
            raise source.error(
                "ranks are placed by a file; name the hosts with -H in the order of the ranks", field=f"--{name}"
            )
    return options, position


def _add(options: dict[str, str], name: str, value: str, written: str, source: Source, is_horovod: bool) -> None:
    """Adds the value of an option to those that were found before it. `written` is its name on the command line."""
    meaning = _MEANINGS.get(name, name)
    if name in ("H", "host") and not is_horovod and meaning in options:
        value = f"{options[meaning]},{value}"  # Open MPI takes all of them.
    elif meaning in _NAMES and options.get(meaning, value) != value:  # Others are repeated: -x A -x B, --mca X 1 --mca Y 2.
        raise source.error(f"this is given twice, as {shown(options[meaning])} and {shown(value)}", field=written)
    if name in ("hosts", "ppn", "f") and not is_horovod:
        options["hydra"] = ""  # MPICH's spelling.
    if meaning in _NAMES and meaning not in _PLACES:
        Values(source, {written: value}, "").check_expanded(written, value)
    options[meaning] = value


def _number(options: dict[str, str], meaning: str, source: Source, *, most: int = MAX_TASKS) -> int:
    written = _NUMBERS[meaning]
    return Values(source, {written: options[meaning]}, "").number(written, least=1, most=most)


def _check_elastic(options: dict[str, str], source: Source) -> None:
    """Raises ClusterError for bad limits of an elastic job. A cluster keeps its size; that is the size at the start, `-np`."""
    if "script" in options:
        raise source.error(
            "tfdist executes nothing of a command line; run the script yourself, save its output (`a:2`) as a host "
            "file, and give that with --hostfile",
            field="--host-discovery-script",
        )
    if "np" not in options:
        return
    size = _number(options, "np", source)
    for name, holds in (("min", lambda limit: limit <= size), ("max", lambda limit: limit >= size)):
        if name in options:
            limit = _number(options, name, source, most=10**9)
            if not holds(limit):
                raise source.error(f"{limit} does not go with -np {size}, the size at the start", field=_NUMBERS[name])


def _hosts(options: dict[str, str], source: Source) -> Hosts | None:
    if "hosts" in options and "hostfile" in options:
        raise source.error("hosts are given by -H and by a host file; keep one of them", field="-H")
    for name in options.keys() & _PLACES:
        Values(source, options, "").check_expanded(_PLACES[name], options[name])
    if "hosts" in options:
        return parse_hosts(options["hosts"], source, "-H")
    if "hostfile" in options:
        file = Source(source.dialect, options["hostfile"][:250])
        return parse_hostfile(read_text(options["hostfile"], file), file)
    return None


def _check_slots(hosts: Hosts, limit: int | None, options: dict[str, str], source: Source) -> None:
    """Raises ClusterError if the ranks depend on the cores of a host: Open MPI starts as many on one without slots."""
    path = options["hostfile"]
    file = Source(source.dialect, path[:250])
    bare = set(without_slots(read_text(path, file), file))
    if not bare or _mapping(options, source)[1] is not None:
        return
    most = limit or 2
    try:
        found = [
            _placed([(host, slots if host not in bare else count) for host, slots in merged(hosts)], limit, options, source)
            for count in (1, most)
        ]
    except ClusterError:
        found = []  # With one rank on each of these hosts there are too few, or none.
    if not found or found[0] != found[1]:
        first = next(host for host, _ in hosts if host in bare)
        raise file.error(
            f"{first} has no number of slots, and Open MPI starts as many ranks on it as it has cores; write "
            f"`{first} slots=1`, or -N 1 into the command for one rank on each host"
        )


def _placed(hosts: Hosts, limit: int | None, options: dict[str, str], source: Source) -> list[str]:
    head, per_host, modifiers = _mapping(options, source)
    order = options.get("rank", "node" if head == "node" else "slot").lower()
    if order not in _RANK_ORDERS:
        raise source.error(
            f"{shown(order)} is an order of ranks that tfdist does not support; use slot or node", field="--rank-by"
        )
    hosts = merged_neighbors(hosts) if "hydra" in options else merged(hosts)
    if per_host is not None:
        count = _number({"per_host": per_host}, "per_host", source)
        hosts = [(host, count) for host, _ in hosts]
    elif "intel" in options and len(hosts) > 1:
        raise source.error(
            "Intel MPI, whose variables I_MPI_ are given, starts as many processes on a host as it has cores; write their "
            "number, -ppn 4",
            field="-ppn",
        )
    available = sum(slots for _, slots in hosts)
    size = available if limit is None else limit
    if "hydra" in options and 0 < available <= MAX_TASKS:
        # Hydra goes round the hosts as often as needed.
        turn = one_by_one(hosts)
        return [turn[rank % available] for rank in range(size)]
    if size > available and ("oversubscribe" in options or "oversubscribe" in modifiers):
        more, others = divmod(size - available, len(hosts))  # Open MPI shares the others out evenly, the first hosts first.
        hosts = [(host, slots + more + (place < others)) for place, (host, slots) in enumerate(hosts)]
        available = size
    if size > available or not size or available > MAX_TASKS:
        raise source.error(f"{size} processes are asked for, but the hosts have {available} slots; give them more", field="-np")
    taken = Counter((_in_turn(hosts) if head == "node" else one_by_one(hosts))[:size])
    mapped = [(host, taken[host]) for host, _ in hosts]
    return _in_turn(mapped) if order == "node" else one_by_one(mapped)


def _mapping(options: dict[str, str], source: Source) -> tuple[str, str | None, list[str]]:
    """Returns the parts of `--map-by`: by what ranks are placed, the ranks for each host, and the modifiers.

    Open MPI takes modifiers alone, `:OVERSUBSCRIBE`, and separates them by colons or, before 5.0, by commas.
    """
    by_socket = f"ppr:{options['npersocket']}:socket" if "npersocket" in options else "slot"
    mapping, per_host = options.get("map", by_socket).lower(), options.get("per_host")
    head, *modifiers = re.split("[:,]", mapping)
    if head == "ppr" and modifiers[1:2] == ["node"]:
        per_host, modifiers = modifiers[0], modifiers[2:]
    elif head not in ("", *_BY_HOST, "node"):
        raise _cannot_map(mapping, source)
    elif head and per_host is not None and "map" in options and not options.keys() & {"bynode", "hydra"}:
        raise source.error(
            f"Open MPI 4 ignores -N {per_host} beside --map-by {head}, and starts a process on each slot; write "
            f"--map-by ppr:{per_host}:node in place of both, or leave out one of them",
            field="-N",
        )
    named = [next((name for name in _MODIFIERS if len(word) > 1 and name.startswith(word)), word) for word in modifiers]
    if "span" in named or "nolocal" in named:
        raise _cannot_map(mapping, source)
    return head or "slot", per_host, named


def _in_turn(hosts: Hosts) -> list[str]:
    """Returns the host of each rank where ranks go to the hosts in turn."""
    turns = sorted((turn, place) for place, (_, slots) in enumerate(hosts) for turn in range(slots))
    return [hosts[place][0] for _, place in turns]


def _cannot_map(mapping: str, source: Source) -> ClusterError:
    return source.error(
        f"{shown(mapping)} is a placement of ranks that tfdist does not support; use slot or node", field="--map-by"
    )
