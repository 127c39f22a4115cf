"""Addresses, `host:port`, as TensorFlow and the launchers write them."""

import re
from collections.abc import Callable

from tfdist.cluster import valid_host
from tfdist.dialects.parsing.document import shown
from tfdist.dialects.parsing.values import Values
from tfdist.errors import ClusterError

_TENSORFLOW = re.compile(r"(?:grpc://)?(\[[^\]]*\]|[^:]*):([0-9]{1,5})", re.ASCII)
_LAUNCHER = re.compile(r"(?:tcp://|grpc://|http://)?(\[[^\]]*\]|[^:]*)(?::([0-9]{1,5}))?", re.ASCII)


def tensorflow_address(address: object, error: Callable[[str], ClusterError]) -> tuple[str, int]:
    """Returns the host and the port of an address that TensorFlow takes: `host:port`, `grpc://host:port`, `[::1]:2222`.

    `error` makes the error about its place.

    Raises:
        ClusterError: if `address` is no such address.
    """
    if not isinstance(address, str):
        raise error(f'{shown(address)} is not an address; expected "host:port"')
    match = _TENSORFLOW.fullmatch(address)
    if match is None:
        hint = "write IPv6 addresses in brackets, [::1]:2222" if address.count(":") > 1 else 'expected "host:port"'
        raise error(f"{shown(address)} has no port or is not an address; {hint}")
    host, port = match[1].removeprefix("[").removesuffix("]"), int(match[2])
    if not valid_host(host) or (":" in host) != match[1].startswith("["):
        raise error(f"{shown(address)} does not start with a host name or an IP address")
    if not 1 <= port <= 65535:
        raise error(f"the port of {shown(address)} is {port}; ports are 1 to 65535")
    return host, port


def launcher_address(values: Values, name: str, text: str, default_port: int | None = None) -> tuple[str, int]:
    """Returns the host and the port of `text`, the address in the option or variable `name`: `host:port` or
    `scheme://host:port`, an IPv6 host in brackets. Without `default_port` the address needs a port.

    Raises:
        ClusterError: if `text` is no such address.
    """
    match = _LAUNCHER.fullmatch(text.strip())
    host = match[1].removeprefix("[").removesuffix("]") if match else ""
    port = int(match[2]) if match and match[2] else default_port
    if not match or port is None or not valid_host(host) or not 1 <= port <= 65535:
        raise values.error(name, f"{shown(text)} is not an address; expected host:port")
    return host, port
