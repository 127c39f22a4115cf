"""`TcpStore`: a store that a process of the job serves, for instance at PyTorch's MASTER_ADDR:MASTER_PORT."""

import contextlib
import errno
import logging
import socket
from functools import partial

from tfdist.launch.rendezvous.stores.authentication import SECRET_VARIABLE, run_secret, shared_secret
from tfdist.launch.rendezvous.stores.bounded import BoundedCalls
from tfdist.launch.rendezvous.stores.interface import CALL_SECONDS, StoreUnavailableError, host_towards
from tfdist.launch.rendezvous.stores.tables import Limits
from tfdist.launch.rendezvous.stores.tcp_channel import Channel
from tfdist.launch.rendezvous.stores.tcp_server import TcpServer, listening_addresses
from tfdist.rank_info import RankInfo

PROBE_SECONDS = 2.0
"""Longest wait for the first answer at a port: another program, which never answers, may listen there."""

_log = logging.getLogger("tfdist")


class TcpStore:
    """The tables of one run, in this process (`serve`) or in another."""

    def __init__(self, rank_info: RankInfo, timeout_seconds: float, *, serve: bool) -> None:
        """Prepares the connection. Raises ClusterError for a secret that is too short."""
        store = rank_info.store
        assert store is not None and store.host is not None and store.port is not None
        self._host = store.host.removeprefix("[").removesuffix("]")
        self._ports = range(store.port, store.port + store.ports)
        secret = shared_secret()
        self._has_secret = bool(secret)
        self._key = run_secret(rank_info, secret)
        self._limits = Limits.of(rank_info.size + len(rank_info.servers))
        self._names = BoundedCalls(f"the name server, asked for {self._host},", timeout_seconds)
        self._must_serve = serve
        self._server: TcpServer | None = None
        self._channel: Channel | None = None

    def put(self, table: str, field: str, text: str) -> None:
        """Sets one field."""
        if server := self._own_server():
            server.tables.put(table, field, text, is_own=True)
        else:
            self._ask({"do": "put", "table": table, "field": field, "text": text})

    def get(self, table: str) -> dict[str, str]:
        """Returns all fields of a table."""
        if server := self._own_server():
            return server.tables.get(table)
        return self._ask({"do": "get", "table": table})

    def remove(self, table: str, field: str) -> None:
        """Removes a field, if it exists."""
        if server := self._own_server():
            server.tables.remove(table, field, is_own=True)
        else:
            self._ask({"do": "remove", "table": table, "field": field})

    def clear(self) -> None:
        """Removes all tables of the run, where this process serves them."""
        if self._server is not None:
            self._server.tables.clear()

    def own_host(self) -> str:
        """Returns the store's host where the store is on this machine, else the address from which this process reaches it."""
        if self._own_server():
            return self._host
        self._ask({"do": "get", "table": "leaders"})
        assert self._channel is not None
        return host_towards(self._channel.socket, self._host)

    def close(self) -> None:
        """Closes the connection, and the server where this process serves."""
        self._disconnect()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _own_server(self) -> TcpServer | None:
        """Returns the server of this process, started where it serves the store. Else connects to another one; returns None."""
        if self._must_serve and self._server is None and self._channel is None and not self._is_served():
            self._server = self._serve()
        if self._server is None and self._channel is None:
            self._connect()
        return self._server

    def _is_served(self) -> bool:
        """Returns whether another process serves this run already. With a single port, `_serve` finds out."""
        if len(self._ports) > 1:
            with contextlib.suppress(StoreUnavailableError):
                self._connect()
        return self._channel is not None

    def _serve(self) -> TcpServer | None:
        """Starts the server; returns None where every port is taken, perhaps by another process of the same rank."""
        for port in self._ports:
            try:
                addresses, why_open = self._names.run(partial(listening_addresses, self._host, port), CALL_SECONDS)
                server = TcpServer(self._key, addresses, self._limits)
            except (OSError, UnicodeError) as cause:
                if isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE:
                    continue
                why = getattr(cause, "strerror", None) or cause
                raise StoreUnavailableError(f"this process cannot serve the store at {self._host}:{port}: {why}") from cause
            if why_open:
                hint = "" if self._has_secret else f"; set {SECRET_VARIABLE} if others can reach this machine"
                _log.warning("the rendezvous listens on all interfaces, port %d, because %s%s", port, why_open, hint)
            return server
        return None

    def _connect(self) -> None:
        causes = []
        addresses = self._addresses()
        for port in self._ports:
            for address in addresses:
                try:
                    self._channel = Channel((address, port), self._key, self._names.limit(PROBE_SECONDS))
                    return
                except OSError as cause:
                    causes.append(f"port {port}: {cause.strerror or cause}")
                except StoreUnavailableError as cause:
                    causes.append(f"port {port}: {cause}")
        raise StoreUnavailableError(f"no store at {self._host}, {'; '.join(dict.fromkeys(causes))}")

    def _addresses(self) -> list[str]:
        try:
            found = self._names.run(lambda: socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM), CALL_SECONDS)
        except (OSError, UnicodeError) as cause:
            why = getattr(cause, "strerror", None) or cause
            raise StoreUnavailableError(f"no store at {self._host}: {why}") from cause
        return list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))

    def _ask(self, request: dict[str, str]) -> dict[str, str]:
        assert self._channel is not None
        try:
            return self._channel.ask(request, self._names.limit(CALL_SECONDS))
        except (OSError, StoreUnavailableError) as cause:
            self._disconnect()
            why = (cause.strerror or cause) if isinstance(cause, OSError) else cause
            raise StoreUnavailableError(f"the store at {self._host} was lost: {why}") from cause

    def _disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
