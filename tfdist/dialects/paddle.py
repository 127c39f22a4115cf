"""PaddlePaddle: parameter servers and trainers of its first years, and the variables and launcher of Paddle 2.

* `paddle train --pservers=...`, `paddle pserver`, `./pserver`, and the same as arguments of `paddle.init` (a dict) and as
  variables PADDLE_INIT_*: `paddle_legacy.py`.
* `python -m paddle.distributed.launch`, `fleetrun`: `paddle_launch.py`.
* The variables that this launcher sets, in parameter server and in collective mode: here.

Sources of the rules here: Paddle `python/paddle/distributed/fleet/base/role_maker.py` @ 01560bf4; of PADDLE_PSERVERS, which is
older, `python/paddle/fluid/incubate/fleet/base/role_maker.py` @ 020612a3.

A pserver is a `ps` task, a trainer a `worker`. With pservers the trainers run asynchronously of each other, unless the mode
says `sync`: Paddle itself keeps that in the training program. Without pservers they train together.
"""

from collections.abc import Mapping
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.dialects import paddle_launch, paddle_legacy
from tfdist.dialects.command_line import Values, address
from tfdist.dialects.document import Document, shown
from tfdist.dialects.paddle_legacy import ROLES, addresses, is_synchronous
from tfdist.errors import Source, nearest
from tfdist.rank_info import RankInfo, Store

NAME = "paddle"
EXAMPLE = "a command line of Paddle (paddle train --pservers=..., python -m paddle.distributed.launch ...)"
IS_MAPPING = True
WORDS = paddle_legacy.WORDS
PROGRAMS = ("paddle", "pserver", "paddle.distributed.launch", "paddle.distributed.fleet.launch", "fleetrun")

MODE_VARIABLE = "TFDIST_PADDLE_MODE"
"""`sync` or `async`: what Paddle's variables do not say."""

FLUID_PORT = 6174
"""Default of PADDLE_PORT in Paddle's programs of Fluid's time, where all pservers had one (PADDLE_PSERVERS has their hosts)."""

_GIVES_AWAY = (
    "PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_PSERVERS",
    "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_INIT_PSERVERS",
    "PADDLE_INIT_NUM_GRADIENT_SERVERS",
)


def parse(document: Document, **_: Any) -> Cluster | RankInfo:
    """Reads the arguments of `paddle.init`."""
    return paddle_legacy.parse(document, Source(NAME, document.name))


def parse_command(words: list[str], source: Source) -> Cluster | RankInfo:
    """Reads a command line of Paddle's launcher, or of `paddle train` and `paddle pserver`."""
    if words[0] in ("paddle", "pserver"):
        return paddle_legacy.parse_command(words, source)
    return paddle_launch.parse_command(words, source)


def recognizes(environ: Mapping[str, str]) -> str | None:
    """The variable that gives Paddle's environment away."""
    return next((name for name in _GIVES_AWAY if environ.get(name, "").strip()), None)


def from_environ(environ: Mapping[str, str]) -> Cluster | RankInfo:
    """Reads the variables of Paddle 2, of Fluid, or PADDLE_INIT_*."""
    name = recognizes(environ) or _GIVES_AWAY[0]
    values = Values(Source(NAME, name), environ)
    if name == "PADDLE_PSERVERS_IP_PORT_LIST":
        return _with_servers(values, name, None)
    if name == "PADDLE_PSERVERS":
        return _with_servers(values, name, values.port("PADDLE_PORT", FLUID_PORT))
    if name == "PADDLE_TRAINER_ENDPOINTS":
        return _collective(values)
    return paddle_legacy.from_environ(environ, values.source, MODE_VARIABLE)


def _collective(values: Values) -> Cluster:
    workers = addresses(values, "PADDLE_TRAINER_ENDPOINTS")
    rank = values.number("PADDLE_TRAINER_ID", 0, most=len(workers) - 1)
    current = values.text("PADDLE_CURRENT_ENDPOINT")
    if current and address(values, "PADDLE_CURRENT_ENDPOINT", current) != workers[rank]:
        raise values.error(
            "PADDLE_CURRENT_ENDPOINT",
            f"{shown(current)} is not number {rank} of PADDLE_TRAINER_ENDPOINTS, as PADDLE_TRAINER_ID says",
        )
    tasks = tuple(Task("worker", index, *where) for index, where in enumerate(workers))
    return Cluster(tasks, source=values.source, task=("worker", rank))


def _with_servers(values: Values, name: str, port: int | None) -> Cluster | RankInfo:
    """`port` is that of all pservers, or None where each has its own in the list."""
    servers = addresses(values, name, port)
    workers = addresses(values, "PADDLE_TRAINER_ENDPOINTS") if values.text("PADDLE_TRAINER_ENDPOINTS") else []
    size = values.number("PADDLE_TRAINERS_NUM", len(workers) or None, least=1)
    if workers and size != len(workers):
        raise values.error("PADDLE_TRAINERS_NUM", f"it is {size}, and PADDLE_TRAINER_ENDPOINTS names {len(workers)}")
    role = values.text("TRAINING_ROLE", values.text("PADDLE_TRAINING_ROLE"))  # The first role maker's name.
    if role not in ROLES:
        hint = "; heterogeneous trainers are not supported" if role.startswith("HETER") else nearest(role, ROLES)
        raise values.error("TRAINING_ROLE", f"{shown(role) if role else 'it is missing'}; expected {' or '.join(ROLES)}{hint}")
    is_server = role == "PSERVER"
    me = RankInfo(
        size=size,
        rank=None if is_server else values.number("PADDLE_TRAINER_ID", most=size - 1),
        source=values.source,
        store=Store("tcp", *servers[0]),
        servers=tuple(Task("ps", index, *where) for index, where in enumerate(servers)),
        server_task=("ps", _server_index(values, name, servers, port)) if is_server else None,
        synchronous=is_synchronous(values, MODE_VARIABLE),
        host=values.text("POD_IP") or None,
    )
    if not workers:
        return me
    return me.cluster(Task("worker", index, *where) for index, where in enumerate(workers))


def _server_index(values: Values, name: str, servers: list[tuple[str, int]], port: int | None) -> int:
    here = (values.text("POD_IP"), values.port("PADDLE_PORT", port))
    if here not in servers:
        raise values.error("POD_IP", f"{shown(':'.join(map(str, here)))}, with PADDLE_PORT, is none of {name}")
    return servers.index(here)
