"""The variables of Paddle 2's launcher, in parameter server mode and in collective mode, and those of Fluid before it.

Sources of the rules: Paddle `python/paddle/distributed/fleet/base/role_maker.py` @ 01560bf4; of PADDLE_PSERVERS, which is
older, `python/paddle/fluid/incubate/fleet/base/role_maker.py` @ 020612a3.
"""

from collections.abc import Mapping

from tfdist.cluster import Cluster, Task
from tfdist.dialects.paddle import legacy
from tfdist.dialects.paddle.addresses import ROLES, addresses, is_synchronous
from tfdist.dialects.paddle.legacy import MODE_VARIABLE, NAME
from tfdist.dialects.parsing.addresses import launcher_address
from tfdist.dialects.parsing.document import shown
from tfdist.dialects.parsing.values import Values
from tfdist.errors import Source, nearest
from tfdist.rank_info import RankInfo, Store

FLUID_PORT = 6174
"""Default of PADDLE_PORT in Fluid's programs. There all pservers have one port, and PADDLE_PSERVERS has their hosts."""

_VARIABLES = (
    "PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_PSERVERS",
    "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_INIT_PSERVERS",
    "PADDLE_INIT_NUM_GRADIENT_SERVERS",
)


def recognizes(environ: Mapping[str, str]) -> str | None:
    """Returns the variable that identifies Paddle's environment, or None."""
    return next((name for name in _VARIABLES if environ.get(name, "").strip()), None)


def from_environ(environ: Mapping[str, str]) -> Cluster | RankInfo:
    """Reads the variables of Paddle 2, of Fluid, or PADDLE_INIT_*. Raises ClusterError for bad ones."""
    name = recognizes(environ) or _VARIABLES[0]
    values = Values(Source(NAME, name), environ)
    if name == "PADDLE_PSERVERS_IP_PORT_LIST":
        return _with_servers(values, name, None)
    if name == "PADDLE_PSERVERS":
        return _with_servers(values, name, values.port("PADDLE_PORT", FLUID_PORT))
    if name == "PADDLE_TRAINER_ENDPOINTS":
        return _collective(values)
    return legacy.from_environ(environ, values.source)


def _collective(values: Values) -> Cluster:
    workers = addresses(values, "PADDLE_TRAINER_ENDPOINTS")
    _check_size(values, workers)
    rank = values.number("PADDLE_TRAINER_ID", 0, most=len(workers) - 1)
    current = values.text("PADDLE_CURRENT_ENDPOINT")
    if current and launcher_address(values, "PADDLE_CURRENT_ENDPOINT", current) != workers[rank]:
        raise values.error(
            "PADDLE_CURRENT_ENDPOINT",
            f"{shown(current)} is not number {rank} of PADDLE_TRAINER_ENDPOINTS, which PADDLE_TRAINER_ID gives",
        )
    tasks = tuple(Task("worker", index, *where) for index, where in enumerate(workers))
    return Cluster(tasks, source=values.source, task=("worker", rank))


def _with_servers(values: Values, name: str, port: int | None) -> Cluster | RankInfo:
    """Reads parameter server mode. `port` is the port of all pservers; None if the list has one for each."""
    servers = addresses(values, name, port)
    workers = addresses(values, "PADDLE_TRAINER_ENDPOINTS") if values.text("PADDLE_TRAINER_ENDPOINTS") else []
    size = _check_size(values, workers)
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


def _check_size(values: Values, workers: list[tuple[str, int]]) -> int:
    """Returns the number of trainers. Raises ClusterError if it is not that of their addresses, as far as these are known."""
    size = values.number("PADDLE_TRAINERS_NUM", len(workers) or None, least=1)
    if workers and size != len(workers):
        raise values.error("PADDLE_TRAINERS_NUM", f"it is {size}, and PADDLE_TRAINER_ENDPOINTS names {len(workers)}")
    return size


def _server_index(values: Values, name: str, servers: list[tuple[str, int]], port: int | None) -> int:
    here = (values.text("POD_IP"), values.port("PADDLE_PORT", port))
    if here not in servers:
        raise values.error("POD_IP", f"{shown(':'.join(map(str, here)))}, with PADDLE_PORT, is none of {name}")
    return servers.index(here)
