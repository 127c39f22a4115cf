"""Lists of addresses and the mode, which all generations of Paddle write alike."""

from tfdist.dialects.parsing.addresses import launcher_address
from tfdist.dialects.parsing.document import MAX_TASKS, shown
from tfdist.dialects.parsing.values import Values

ROLES = ("TRAINER", "PSERVER")


def is_synchronous(values: Values, name: str) -> bool:
    """Returns whether the mode `name` is `sync`. Default: `async`. Raises ClusterError for other texts."""
    mode = values.text(name, "async")
    if mode not in ("sync", "async"):
        raise values.error(name, f"{shown(mode)} is not right; expected sync or async")
    return mode == "sync"


def addresses(values: Values, name: str, default_port: int | None = None) -> list[tuple[str, int]]:
    """Returns the addresses of the comma-separated list `name`. Without `default_port` every address needs a port.

    Raises:
        ClusterError: for a bad or repeated address, an empty list, and a list that is too long.
    """
    parts = [part for part in values.text(name).split(",") if part.strip()]
    if len(parts) > MAX_TASKS:
        raise values.error(name, f"there are {len(parts)} addresses, and tfdist supports {MAX_TASKS}")
    pairs = [launcher_address(values, name, part, default_port) for part in parts]
    if not pairs:
        raise values.error(name, "it names no address; expected host:port,host:port")
    held: set[tuple[str, int]] = set()
    for host, port in pairs:
        if (host.lower(), port) in held:
            raise values.error(name, f"{host}:{port} is given twice")
        held.add((host.lower(), port))
    return pairs
