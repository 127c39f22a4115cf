"""PaddlePaddle before Fluid: the flags of `paddle train` and `paddle pserver`, `paddle.init`'s arguments, PADDLE_INIT_*.

Sources of the rules: Paddle `paddle/utils/Flags.cpp` @ 042f3524 (names and defaults) and
`doc/howto/usage/cluster/cluster_train_en.md` @ 033acf34 (meanings; its defaults are others).

Pservers have one port for all of them. Trainers connect to them and have no address, so they meet in a store that the first
pserver serves at its port, before TensorFlow's server takes it.
"""

import socket
from collections.abc import Mapping

from tfdist.cluster import Cluster, Task
from tfdist.dialects.command_line import Values, address, names, options
from tfdist.dialects.document import MAX_TASKS, Document, close, shown
from tfdist.errors import ClusterError, Source
from tfdist.rank_info import RankInfo, Store

PORT = 20134

ROLES = ("TRAINER", "PSERVER")

_VALUED = names("port ports_num ports_num_for_sparse num_gradient_servers trainer_id pservers trainer_count nics rdma_tcp mode")
_SWITCHES = names("use_gpu local is_local")
_ALIASES = {"num_of_gradient_servers": "num_gradient_servers"}
"""What a much-read comparison of frameworks calls it; Paddle itself would not know the flag."""

WORDS = (_VALUED | _SWITCHES | frozenset(_ALIASES)) - {"port", "mode"}


def parse(document: Document, source: Source) -> Cluster | RankInfo:
    """Reads the arguments of `paddle.init`. A trainer is meant, or with `job: pserver` a pserver."""
    texts = {}
    for key, value in document.mapping.items():
        line = document.lines.get((key,))
        name = _ALIASES.get(key, key) if isinstance(key, str) else None
        if name is None or name not in _VALUED | _SWITCHES | {"job"}:
            meant = close(key, WORDS) if isinstance(key, str) else None
            hint = f"; did you mean {meant}?" if meant else ""
            raise source.error(f"{shown(key)} is no argument that concerns the cluster{hint}", line=line)
        if name in texts:
            raise source.error("it is given twice; keep num_gradient_servers", field=key, line=line)
        if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
            value = ",".join(value)
        if value is not None and not isinstance(value, str | int | bool):
            raise source.error(f"{shown(value)} is neither text nor a number", field=key, line=line)
        try:
            texts[name] = "" if value is None else str(value)
        except ValueError:  # An int of thousands of digits.
            raise source.error("there is a number of thousands of digits", field=key, line=line) from None
    return _read(Values(source, texts, ""), is_server=texts.get("job") == "pserver", environ={})


def parse_command(words: list[str], source: Source) -> Cluster | RankInfo:
    """Reads `paddle train ...`, `paddle pserver ...` or `./pserver ...`; flags about other things are passed over."""
    words = [words[0], *(_known_spelling(word) for word in words[1:])]
    job = words[1] if words[0] == "paddle" and len(words) > 1 else words[0]
    if job not in ("train", "pserver"):
        raise source.error(f"{shown(job)} starts no training; expected paddle train or paddle pserver")
    values = options(words[1:], source, _VALUED, _SWITCHES, is_program=True)
    return _read(values, is_server=job == "pserver", environ={})


def from_environ(environ: Mapping[str, str], source: Source, mode_variable: str) -> Cluster | RankInfo:
    """Reads PADDLE_INIT_*; TRAINING_ROLE, where it is set, says whether this is a pserver.

    The first programs of Fluid asked for TRAINERS beside them, and took 6174 where there was no port.
    """
    prefix = "PADDLE_INIT_"
    texts = {}
    for variable, text in environ.items():
        name = variable.removeprefix(prefix).lower()
        name = _ALIASES.get(name, name)
        if variable.startswith(prefix) and name in _VALUED | _SWITCHES:
            texts[name] = text
    if environ.get("TRAINERS"):
        texts.setdefault("num_gradient_servers", environ["TRAINERS"])
        texts.setdefault("port", environ.get("PADDLE_INIT_PSERVER_PORT") or "6174")
    if environ.get(mode_variable):
        texts["mode"] = environ[mode_variable]
    return _read(Values(source, texts, prefix.lower()), environ.get("TRAINING_ROLE") == "PSERVER", environ)


def is_synchronous(values: Values, name: str) -> bool:
    """The mode, `sync` or `async`; asynchronous where nothing is said."""
    mode = values.text(name, "async")
    if mode not in ("sync", "async"):
        raise values.error(name, f"{shown(mode)} is not right; expected sync or async")
    return mode == "sync"


def addresses(values: Values, name: str, default_port: int | None = None) -> list[tuple[str, int]]:
    """A comma-separated list of `host:port`; of hosts alone where there is a port for all."""
    parts = [part for part in values.text(name).split(",") if part.strip()]
    if len(parts) > MAX_TASKS:
        raise values.error(name, f"there are {len(parts)} addresses, and tfdist supports {MAX_TASKS}")
    found = [address(values, name, part, default_port) for part in parts]
    if not found:
        raise values.error(name, "it names no address; expected host:port,host:port")
    held: set[tuple[str, int]] = set()
    for host, port in found:
        if (host.lower(), port) in held:
            raise values.error(name, f"{host}:{port} is given twice")
        held.add((host.lower(), port))
    return found


def _known_spelling(word: str) -> str:
    for alias, name in _ALIASES.items():
        if word.lstrip("-").partition("=")[0] == alias:
            return word.replace(alias, name, 1)
    return word


def _read(values: Values, is_server: bool, environ: Mapping[str, str]) -> Cluster | RankInfo:
    size = values.number("num_gradient_servers", 1, least=1)
    slots = values.number("trainer_count", 1, least=1)
    gpus = slots if values.flag("use_gpu") else 0
    local = next((name for name in ("is_local", "local") if values.text(name)), None)
    if local and values.flag(local) and (size > 1 or is_server):
        raise values.error(local, f"a local job has one trainer and no pserver, and this one has {size} trainers")
    is_local = values.flag(local) if local else size == 1 and not values.text("pservers")
    if is_local and not is_server:
        return Cluster((Task("worker", 0, slots=slots, gpus=gpus),), source=values.source)
    port = values.port("port", PORT)
    servers = addresses(values, "pservers", port) if values.text("pservers") else [("127.0.0.1", port)]
    return RankInfo(
        size=size,
        rank=None if is_server else values.number("trainer_id", 0, most=size - 1),
        source=values.source,
        store=Store("tcp", *servers[0]),
        slots=slots,
        gpus=gpus,
        servers=tuple(Task("ps", index, *where) for index, where in enumerate(servers)),
        server_task=("ps", _server_index(values, servers, environ)) if is_server else None,
        synchronous=is_synchronous(values, "mode"),
        host=environ.get("POD_IP") or None,
    )


def _server_index(values: Values, servers: list[tuple[str, int]], environ: Mapping[str, str]) -> int:
    """Which of the pservers this is: the one at POD_IP, or at an address of this machine."""
    if len(servers) == 1:
        return 0
    pod = environ.get("POD_IP")
    here = [index for index, (host, _) in enumerate(servers) if (host == pod if pod else _is_here(host))]
    if len(here) != 1:
        raise _which(values, len(here))
    return here[0]


def _which(values: Values, count: int) -> ClusterError:
    found = "none of them is" if count == 0 else f"{count} of them are"
    return values.error(
        "pservers", f"a pserver is the one on its own machine, and {found} on this one; set POD_IP to its address"
    )


def _is_here(host: str) -> bool:
    """Whether this machine has the name or address: an address of another cannot be bound."""
    if host.lower() in ("localhost", socket.gethostname().lower()):
        return True
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True
