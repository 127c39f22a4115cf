"""`TcpStore`: a store that a process of the job serves, for instance at PyTorch's MASTER_ADDR:MASTER_PORT."""

import contextlib
import errno
import json
import socket
from typing import Any

from tfdist.launch.rendezvous.stores.interface import CALL_SECONDS, StoreUnavailableError, host_towards, run_key
from tfdist.launch.rendezvous.stores.tcp_server import TcpServer
from tfdist.rank_info import RankInfo

MAX_ANSWER = 64 << 20
"""Longest answer that is read, in bytes: the addresses of the largest cluster fit several times."""

PROBE_SECONDS = 2.0
"""Longest wait for the first answer at a port: another program, which never answers, may listen there."""


class TcpStore:
    """The tables of one run, in this process (`serve`) or in another."""

    def __init__(self, rank_info: RankInfo, *, serve: bool) -> None:
        store = rank_info.store
        assert store is not None and store.host is not None and store.port is not None
        self._host = store.host.removeprefix("[").removesuffix("]")
        self._ports = range(store.port, store.port + store.ports)
        self._run = run_key(rank_info)
        self._must_serve = serve
        self._server: TcpServer | None = None
        self._connected: socket.socket | None = None
        self._lines: Any = None

    def put(self, table: str, field: str, text: str) -> None:
        """Sets one field."""
        self._call({"do": "put", "table": table, "field": field, "text": text})

    def get(self, table: str) -> dict[str, str]:
        """Returns all fields of a table."""
        return self._call({"do": "get", "table": table})

    def remove(self, table: str, field: str) -> None:
        """Removes a field, if it exists."""
        self._call({"do": "remove", "table": table, "field": field})

    def clear(self) -> None:
        """Removes all tables of the run."""
        self._call({"do": "clear"})

    def own_host(self) -> str:
        """Returns the store's host where the store is on this machine, else the address from which this process reaches it."""
        self._call({"do": "get", "table": "leaders"})
        if self._server is not None:
            return self._host
        assert self._connected is not None
        return host_towards(self._connected, self._host)

    def close(self) -> None:
        """Closes the connection, and the server where this process serves."""
        self._disconnect()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _call(self, request: dict[str, str]) -> dict[str, str]:
        if self._must_serve and self._server is None and self._connected is None and not self._is_served():
            self._server = self._serve()
        if self._server is not None:
            return self._server.answer(request)
        if self._connected is None:
            self._connect()
        return self._ask(request)

    def _is_served(self) -> bool:
        """Returns whether another process serves this run already. With a single port, `_serve` finds out."""
        if len(self._ports) > 1:
            with contextlib.suppress(StoreUnavailableError):
                self._connect()
        return self._connected is not None

    def _serve(self) -> TcpServer | None:
        """Starts the server; returns None where every port is taken, perhaps by another process of the same rank."""
        for port in self._ports:
            try:
                return TcpServer(self._run, self._host, port)
            except OSError as cause:
                if cause.errno != errno.EADDRINUSE:
                    raise StoreUnavailableError(
                        f"this process cannot serve the store at {self._host}:{port}: {cause.strerror or cause}"
                    ) from cause
        return None

    def _connect(self) -> None:
        causes = []
        for port in self._ports:
            try:
                self._connected = socket.create_connection((self._host, port), PROBE_SECONDS)
                self._connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._lines = self._connected.makefile("rb")
                self._ask({"do": "get", "table": "leaders"})
                self._connected.settimeout(CALL_SECONDS)
                return
            except OSError as cause:
                causes.append(f"port {port}: {cause.strerror or cause}")
            except StoreUnavailableError as cause:
                causes.append(f"port {port}: {cause}")
            self._disconnect()
        raise StoreUnavailableError(f"no store at {self._host}, {'; '.join(causes)}")

    def _ask(self, request: dict[str, str]) -> dict[str, str]:
        assert self._connected is not None
        try:
            self._connected.sendall(json.dumps({"run": self._run, **request}).encode() + b"\n")
            line = self._lines.readline(MAX_ANSWER)
            answer = json.loads(line) if line.endswith(b"\n") else None
        except OSError as cause:
            self._disconnect()
            raise StoreUnavailableError(f"the store at {self._host} was lost: {cause.strerror or cause}") from cause
        except (ValueError, RecursionError):
            answer = None
        table = answer.get("table") if isinstance(answer, dict) else None
        if isinstance(answer, dict) and answer.get("run") == self._run and isinstance(table, dict):
            return {field: text for field, text in table.items() if isinstance(text, str)}
        self._disconnect()
        is_other_run = isinstance(answer, dict) and "run" in answer
        raise StoreUnavailableError(
            "this is the store of another run" if is_other_run else "the program that answers is not the store of a tfdist run"
        )

    def _disconnect(self) -> None:
        for open_file in (self._lines, self._connected):
            if open_file is not None:
                open_file.close()
        self._lines = self._connected = None
