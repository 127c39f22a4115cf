"""The store that a process of the job serves itself, at PyTorch's MASTER_ADDR:MASTER_PORT for instance.

The protocol is tfdist's own: a line of JSON asks, a line of JSON answers. `{"run": KEY, "do": "put", "table": .., "field": ..,
"text": ..}` and `get`, `remove`, `clear` likewise; the answer is `{"run": KEY, "table": {..}}`. Whoever sends anything else is
cut off, and a store of another run says that it is one.
"""

import asyncio
import contextlib
import errno
import ipaddress
import json
import socket
import threading
from typing import Any

from tfdist.launch.rendezvous.stores.store import CALL_SECONDS, LOOPBACK, StoreUnavailableError, host_towards, run_key
from tfdist.rank_info import RankInfo

MAX_REQUEST = 16 << 10
"""Longest line that is read from a client, in bytes; an announcement has a few hundred. The host's own have no limit."""

MAX_ANSWER = 64 << 20
"""Longest line that is read from the store, in bytes: the addresses of the largest cluster, with room to spare."""

MAX_FIELDS = 400_000
"""Most fields in all tables together: a few for each task of the largest cluster (`dialects.text.MAX_TASKS`)."""

PROBE_SECONDS = 2.0
"""Longest wait for the first answer at a port, which may be somebody else's who never answers."""

IDLE_SECONDS = 60.0
"""After which a silent connection is cut off; a rank asks at least every few seconds."""


def open_store(rank_info: RankInfo, is_host: bool, lifetime_seconds: float) -> "TcpStore":
    """See `tfdist.launch.rendezvous.stores.store`. What is in it ends with its host."""
    del lifetime_seconds
    return TcpStore(rank_info, is_host)


class TcpStore:
    """The tables of one run, in this process or in another."""

    def __init__(self, rank_info: RankInfo, is_host: bool) -> None:
        store = rank_info.store
        assert store is not None and store.host is not None and store.port is not None
        self._host = store.host.removeprefix("[").removesuffix("]")
        self._ports = range(store.port, store.port + store.ports)
        self._run = run_key(rank_info)
        self._is_host = is_host
        self._server: _Server | None = None
        self._connected: socket.socket | None = None
        self._lines: Any = None

    def put(self, table: str, field: str, text: str) -> None:
        """Sets one field."""
        self._call({"do": "put", "table": table, "field": field, "text": text})

    def get(self, table: str) -> dict[str, str]:
        """All fields of a table."""
        return self._call({"do": "get", "table": table})

    def remove(self, table: str, field: str) -> None:
        """Takes a field away, if it is there."""
        self._call({"do": "remove", "table": table, "field": field})

    def clear(self) -> None:
        """Takes everything of this run away."""
        self._call({"do": "clear"})

    def my_host(self) -> str:
        """The store's own host where it is on this machine, else the address from which this process reaches it."""
        self._call({"do": "get", "table": "leaders"})
        if self._server is not None:
            return self._host
        assert self._connected is not None
        return host_towards(self._connected, self._host)

    def close(self) -> None:
        """Ends the connection, and the store where it is here."""
        self._disconnect()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _call(self, request: dict[str, str]) -> dict[str, str]:
        if self._is_host and self._server is None and self._connected is None and not self._is_served():
            self._server = self._serve()
        if self._server is not None:
            return self._server.do(request)
        if self._connected is None:
            self._connect()
        return self._ask(request)

    def _is_served(self) -> bool:
        """Whether another process serves this run already, at any of several ports; at a single port, `_serve` finds out."""
        if len(self._ports) > 1:
            with contextlib.suppress(StoreUnavailableError):
                self._connect()
        return self._connected is not None

    def _serve(self) -> "_Server | None":
        """Starts the store; None where every port is taken, perhaps by another process that takes itself for the host."""
        for port in self._ports:
            try:
                return _Server(self._run, _listen(self._host, port))
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
        other = isinstance(answer, dict) and "run" in answer
        raise StoreUnavailableError(
            "that is the store of another run" if other else "what answers is not the store of a tfdist run"
        )

    def _disconnect(self) -> None:
        for open_file in (self._lines, self._connected):
            if open_file is not None:
                open_file.close()
        self._lines = self._connected = None


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket at `host`, or at all addresses where that is the name of something before this machine."""
    family, address = _address(host, port)
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as cause:
            if cause.errno != errno.EADDRNOTAVAIL:
                raise
            # Behind a Kubernetes service or another translation of addresses, nobody has the address that all are given.
            listener.bind(("", port))
        listener.listen(socket.SOMAXCONN)
    except BaseException:
        listener.close()
        raise
    return listener


def _address(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    is_name = not _is_address(host) and host.lower() not in LOOPBACK
    if is_name and ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        return socket.AF_INET, ("", port)  # The machine's own name, which leads only itself to the loopback address.
    return family, address


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


class _Server:
    """Serves the tables of one run from a thread, until it is closed."""

    def __init__(self, run: str, listener: socket.socket) -> None:
        self._run = run
        self._tables: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._ending: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run_loop, args=(listener,), name="tfdist-store", daemon=True)
        self._thread.start()
        self._started.wait(CALL_SECONDS)

    def do(self, request: dict[str, str]) -> dict[str, str]:
        """What a request asks for. Raises KeyError or TypeError for one that is none."""
        with self._lock:
            what = request["do"]
            if what == "clear":
                self._tables.clear()
                return {}
            table = self._tables.get(request["table"], {})
            if what == "get":
                return dict(table)
            if what == "remove":
                table.pop(request["field"], None)
                return {}
            if what != "put" or sum(map(len, self._tables.values())) >= MAX_FIELDS:
                raise KeyError(what)
            self._tables.setdefault(request["table"], {})[request["field"]] = request["text"]
            return {}

    def close(self) -> None:
        """Ends the store and every connection to it."""
        ending = self._ending
        if ending is not None:
            self._loop.call_soon_threadsafe(ending.set)
        self._thread.join(CALL_SECONDS)

    def _run_loop(self, listener: socket.socket) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        self._ending = asyncio.Event()
        connections: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                await self._converse(reader, writer)
            except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError):
                pass  # A port scanner, a browser, a rank that died: cut off without a word.
            except asyncio.CancelledError:
                pass  # The store ends. (Python 3.11 logs a connection's task that ends as cancelled.)
            finally:
                connections.discard(task)
                writer.transport.abort() if writer.is_closing() else writer.close()

        server = await asyncio.start_server(connected, sock=listener, limit=MAX_REQUEST)
        self._started.set()
        await self._ending.wait()
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await asyncio.wait_for(reader.readline(), IDLE_SECONDS):
            request = json.loads(line)
            if request["run"] != self._run:
                answer: dict[str, Any] = {"run": self._run}
            elif all(isinstance(value, str) for value in request.values()):
                answer = {"run": self._run, "table": self.do(request)}
            else:
                return
            writer.write(json.dumps(answer).encode() + b"\n")
            await asyncio.wait_for(writer.drain(), IDLE_SECONDS)
