"""Host files of Horovod, Open MPI and MPICH, and the hosts of `-H`.

Sources of the rules: horovod/horovod v0.28.1 `runner/common/util/hosts.py`; the manual pages of Open MPI 4.1 `mpirun` and of
MPICH's `mpiexec.hydra`. Horovod's reader raises IndexError for blank lines and comments, which are allowed here.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tfdist.cluster import Cluster, Task, valid_host
from tfdist.dialects.parsing.document import MAX_TASKS, Document, shown
from tfdist.errors import ClusterError, Source, nearest

NAME = "horovod"

Hosts = list[tuple[str, int]]
"""Hosts and the most ranks on each, in the order of the ranks."""

_NAME = r"(?:(?:[\w.@-]+@)?\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[\w.@-]+)"
"""A host: a name, an address, or an IPv6 address in brackets."""

_BARE_IPV6 = r"(?:[\w.-]+@)?[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?"
_HOST_LINE = re.compile(rf"(?:{_NAME}(?::[0-9]+)?|{_BARE_IPV6})(?:[ \t]+[A-Za-z][\w-]*[ \t]*=[ \t]*\S*)*", re.ASCII)
_SLOTS_LINE = re.compile(
    rf"(?:{_NAME}|{_BARE_IPV6})(?:[ \t]+[A-Za-z][^\s/]*)*?[ \t]+(?:(?:[A-Za-z][\w-]*)?slots?|cpus?|count)[ \t]*=", re.ASCII
)
"""A host and its slots. Words with a dash are the options of a command: `horovodrun -np 8 bash bind.sh --cpu=node train.py`."""
_FIELD = re.compile(r"n?(?:workers?|servers?)_(?:per_|groups?).*|start_port|sync_freq|poll_time", re.ASCII)
_COLON_LINE = re.compile(rf"({_NAME}):([0-9]+)(?:[ \t].*)?", re.ASCII)
_OPTION = re.compile(r"([A-Za-z][\w-]*)[ \t]*=[ \t]*(\S*)", re.ASCII)
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(?::([0-9]{1,9}))?", re.ASCII)
_PORTS = range(1024, 65536)
"""A number as in `a:2222` is a port: programs listen there, and no host starts so many ranks."""
_SLOTS = ("slots", "cpu", "cpus", "count")
_FILE_OPTIONS = (*_SLOTS, "max_slots", "max-slots", "slots_max", "slots-max", "binding", "user", "username", "port")


def looks_like(content: "str | Mapping[Any, Any]") -> bool:
    """Returns whether the first line with slots, `a slots=2` or `a:2`, comes after nothing but hosts.

    `nworker_groups:1` has this form, too, and is a field of SINGA. Nothing but hosts is a machine file of PBS or LSF if one of
    them has several lines: a line for each process. SINGA's host file has each host once.
    """
    if not isinstance(content, str) or content.startswith("#!"):
        return False
    bare: list[str] = []
    for line in map(_without_comment, content.splitlines()):
        if line and (_SLOTS_LINE.match(line) or _COLON_LINE.fullmatch(line)):
            return _FIELD.match(line) is None
        if line and not _HOST_LINE.fullmatch(line):
            return False
        bare += [line] if line else []
    return len(set(bare)) < len(bare) and all(valid_host(line) and not line.isdecimal() for line in bare)


def parse(document: Document) -> Cluster:
    """Reads a host file of Horovod, Open MPI (`a slots=2 max_slots=4`) or MPICH (`a:2`); every slot is a worker."""
    source = Source(NAME, document.name)
    hosts = merged(parse_hostfile(document.text, source))
    return cluster_of(one_by_one(hosts), source)


def one_by_one(hosts: Hosts) -> list[str]:
    """Returns the host of each rank where ranks fill one host after another."""
    return [host for host, slots in hosts for _ in range(slots)]


def cluster_of(hosts: list[str], source: Source) -> Cluster:
    """Returns a cluster with one worker for each rank, given the host of each rank."""
    return Cluster(tuple(Task("worker", rank, host) for rank, host in enumerate(hosts)), source=source)


def parse_hostfile(text: str, source: Source) -> Hosts:
    """Returns the hosts of a host file. Raises ClusterError with the line of a fault."""
    hosts: Hosts = []
    total = 0
    for number, line in enumerate(text.splitlines(), start=1):
        line = _without_comment(line)
        if line:
            host, slots = _hostfile_line(line, number, source)
            slots = 1 if slots is None else slots
            total += slots
            _check_total(total, source)
            hosts.append((host, slots))
    if not total:
        raise source.error("the host file has no slots; it needs a line such as `a slots=2`")
    return hosts


def parse_hosts(text: str, source: Source, field: str) -> Hosts:
    """Returns the hosts of `-H a:2,b:2`. A host without a number has one slot. Raises ClusterError for a bad text."""
    hosts: Hosts = []
    for item in text.split(","):
        match = _HOST.fullmatch(item.strip())
        host = _address(match[1]) if match else None
        if match is None or host is None:
            hint = "; write IPv6 addresses in brackets, [::1]:2" if item.count(":") > 1 else ""
            raise source.error(f"{shown(item)} is not a host and its slots; expected a:2,b:2{hint}", field=field)
        slots = int(match[2] or 1)
        if slots in _PORTS:
            raise source.error(f"{shown(item)}: {_is_port(host, slots)}", field=field)
        hosts.append((host, slots))
    _check_total(sum(slots for _, slots in hosts), source)
    return hosts


def merged(hosts: Hosts) -> Hosts:
    """Returns each host once, with the sum of its slots, as Open MPI does."""
    slots: dict[str, int] = {}
    for host, count in hosts:
        slots[host] = slots.get(host, 0) + count
    return list(slots.items())


def merged_neighbors(hosts: Hosts) -> Hosts:
    """Returns the hosts with one entry for those that are named in a row, as Hydra does."""
    result: Hosts = []
    for host, count in hosts:
        if result and result[-1][0] == host:
            count += result.pop()[1]
        result.append((host, count))
    return result


def without_slots(text: str, source: Source) -> list[str]:
    """Returns the hosts of a host file that have one line, and no number of slots in it."""
    lines = [(number, line) for number, line in enumerate(map(_without_comment, text.splitlines()), start=1) if line]
    named = [_hostfile_line(line, number, source) for number, line in lines]
    times = Counter(host for host, _ in named)
    return [host for host, slots in named if slots is None and times[host] == 1]


def _check_total(total: int, source: Source) -> None:
    if total > MAX_TASKS:
        raise source.error(f"there are more than {MAX_TASKS} slots, which is more than tfdist supports")


def _is_port(host: str, slots: int) -> str:
    """Returns the sentence about an address in the place of a host and its slots."""
    where = f"[{host}]" if ":" in host else host
    return (
        f"{slots} would be the number of processes on {host}; if it is a port, describe the addresses as TF_CONFIG does, "
        f'{{"worker": ["{where}:{slots}"]}}, and otherwise write `{where} slots={slots}` into a host file'
    )


def _without_comment(line: str) -> str:
    return line.partition("#")[0].strip()


def _address(written: str) -> str | None:
    """Returns the host that is written, an IPv6 address without its brackets; None if it is none."""
    is_bracketed = written.startswith("[") and written.endswith("]")
    host = written[1:-1] if is_bracketed else written
    return host if valid_host(host) and (":" in host or not is_bracketed) else None


def _hostfile_line(line: str, number: int, source: Source) -> tuple[str, int | None]:
    """Returns the host of a line and its slots; None if it does not give them."""

    def fault(message: str) -> ClusterError:
        return source.error(message, line=number)

    if match := _COLON_LINE.fullmatch(line):
        name, slots, rest = match[1], match[2], line.partition(" ")[2]
    else:
        name, _, rest = line.replace("\t", " ").partition(" ")
        slots = None
    options = _OPTION.findall(rest)
    if left := _OPTION.sub("", rest).split():
        raise fault(f"{shown(left[0])} is not allowed here; expected a line such as `a slots=2`")
    for key, value in options:
        if key not in _FILE_OPTIONS:
            raise fault(f"{shown(key)} is not known in a host file{nearest(key, _FILE_OPTIONS)}")
        if key in _SLOTS:
            slots = value
    host = _address(name.rpartition("@")[2])
    if host is None:
        hint = "; write IPv6 addresses in brackets, [::1]:2" if ":" in name else ""
        raise fault(f"{shown(name)} is neither a host name nor an address{hint}")
    before, _, last = host.rpartition(":")
    if slots is None and "[" not in name and before and last.isdecimal() and valid_host(before):
        raise fault(
            f"{shown(name)} may be an address, or {before} with {last} slots; write [{before}]:{last} or {host} slots=1"
        )
    if slots is None:
        return host, None
    if not (slots.isascii() and slots.isdecimal() and len(slots) <= 9):
        raise fault(f"{shown(slots)} is not a number of slots")
    if match and slots == match[2] and int(slots) in _PORTS:
        raise fault(_is_port(host, int(slots)))
    return host, int(slots)
