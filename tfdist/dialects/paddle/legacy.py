"""PaddlePaddle before Fluid: the flags of `paddle train` and `paddle pserver`, `paddle.init`'s arguments, PADDLE_INIT_*.

Sources of the rules: Paddle `paddle/utils/Flags.cpp` @ 042f3524 (names and defaults) and
`doc/howto/usage/cluster/cluster_train_en.md` @ 033acf34 (meanings; it gives other defaults).

All pservers have one port. Trainers connect to them and have no address, so they meet in a store that the first pserver serves
at its port, before TensorFlow's server takes the port.
"""

import socket
from collections.abc import Mapping

from tfdist.cluster import Cluster, Task
from tfdist.dialects.paddle.addresses import addresses, is_synchronous
from tfdist.dialects.parsing.command_line import names, options
from tfdist.dialects.parsing.document import Document, close, shown
from tfdist.dialects.parsing.values import Values, scalar_text
from tfdist.errors import ClusterError, Source
from tfdist.rank_info import RankInfo, Store

NAME = "paddle"
MODE_VARIABLE = "TFDIST_PADDLE_MODE"
"""`sync` or `async`, which Paddle's variables do not state."""

PORT = 20134

_VALUED = names("port ports_num ports_num_for_sparse num_gradient_servers trainer_id pservers trainer_count nics rdma_tcp mode")
_SWITCHES = names("use_gpu local is_local")
_ALIASES = {"num_of_gradient_servers": "num_gradient_servers"}
"""The name of the flag in a much-read comparison of frameworks. Paddle itself does not know it."""

MARKS = names("pservers num_gradient_servers num_of_gradient_servers trainer_id trainer_count ports_num ports_num_for_sparse")
WORDS = (_VALUED | _SWITCHES | frozenset(_ALIASES)) - {"port", "mode"}


def parse(document: Document) -> Cluster | RankInfo:
    """Reads the arguments of `paddle.init` on a trainer, or on a pserver with `job: pserver`.

    Raises ClusterError for a bad one.
    """
    source = Source(NAME, document.name)
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
        texts[name] = "" if value is None else scalar_text(value, source, key, line)
    return _read(Values(source, texts, ""), is_server=texts.get("job") == "pserver", environ={})


def parse_command(words: list[str], source: Source) -> Cluster | RankInfo:
    """Reads `paddle train ...`, `paddle pserver ...` or `./pserver ...`.

    Other flags are ignored. Raises ClusterError for a bad one.
    """
    words = [words[0], *(_known_spelling(word) for word in words[1:])]
    job = words[1] if words[0] == "paddle" and len(words) > 1 else words[0]
    if job not in ("train", "pserver"):
        raise source.error(f"{shown(job)} starts no training; expected paddle train or paddle pserver")
    values = options(words[1:], source, _VALUED, _SWITCHES, is_program=True)
    return _read(values, is_server=job == "pserver", environ={})


def from_environ(environ: Mapping[str, str], source: Source) -> Cluster | RankInfo:
    """Reads PADDLE_INIT_*. TRAINING_ROLE, if it is set, states whether this is a pserver.

    Fluid's first programs also read TRAINERS, and used port 6174 if none was given.

    Raises:
        ClusterError: for bad variables.
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
    if environ.get(MODE_VARIABLE):
        texts["mode"] = environ[MODE_VARIABLE]
    return _read(Values(source, texts, prefix.lower()), environ.get("TRAINING_ROLE") == "PSERVER", environ)


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
    """Returns the index of this pserver: the one at POD_IP, or at an address of this machine."""
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
    """Returns whether this machine has the name or address. Another machine's address cannot be bound."""
    if host.lower() in ("localhost", socket.gethostname().lower()):
        return True
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True
