"""`TcpServer`: serves the tables of one run to the other processes of the job, from a thread of this process.

The protocol is tfdist's. A request is a line of JSON, `{"run": KEY, "do": "put", "table": .., "field": .., "text": ..}`, where
`do` may also be `get`, `remove` or `clear`. The answer is a line of JSON, `{"run": KEY, "table": {..}}`; a request of another
run gets the run key alone. Any other input closes the connection.
"""

import asyncio
import contextlib
import errno
import ipaddress
import json
import socket
import threading
from typing import Any

from tfdist.launch.rendezvous.stores.interface import CALL_SECONDS, LOOPBACK

MAX_REQUEST = 16 << 10
"""Longest request, in bytes; a member info has a few hundred. The process that serves has no limit for its requests."""

MAX_FIELDS = 400_000
"""Most fields in all tables together: a few for each task of the largest cluster that tfdist reads."""

IDLE_SECONDS = 60.0
"""Time after which a silent connection is closed; a rank sends a request at least every few seconds."""


class TcpServer:
    """The tables of one run, served until `close`."""

    def __init__(self, run: str, host: str, port: int) -> None:
        """Starts the server.

        Raises:
            OSError: when this process cannot listen at `host` and `port`.
        """
        self._run = run
        self._tables: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()
        listener = _listen(host, port)
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._closing: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run_loop, args=(listener,), name="tfdist-store", daemon=True)
        self._thread.start()
        self._started.wait(CALL_SECONDS)

    def answer(self, request: dict[str, str]) -> dict[str, str]:
        """Does what a request asks for; returns the table of the answer. Raises KeyError or TypeError for a bad request."""
        with self._lock:
            action = request["do"]
            if action == "clear":
                self._tables.clear()
                return {}
            table = self._tables.get(request["table"], {})
            if action == "get":
                return dict(table)
            if action == "remove":
                table.pop(request["field"], None)
                return {}
            if action != "put" or sum(map(len, self._tables.values())) >= MAX_FIELDS:
                raise KeyError(action)
            self._tables.setdefault(request["table"], {})[request["field"]] = request["text"]
            return {}

    def close(self) -> None:
        """Closes the server and every connection to it."""
        closing = self._closing
        if closing is not None:
            self._loop.call_soon_threadsafe(closing.set)
        self._thread.join(CALL_SECONDS)

    def _run_loop(self, listener: socket.socket) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        self._closing = asyncio.Event()
        connections: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                await self._converse(reader, writer)
            except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError):
                pass  # A port scanner, a browser, or a rank that died: its connection is closed without an answer.
            except asyncio.CancelledError:
                pass  # The server closes. (Python 3.11 logs a connection's task that ends as cancelled.)
            finally:
                connections.discard(task)
                writer.transport.abort() if writer.is_closing() else writer.close()

        server = await asyncio.start_server(connected, sock=listener, limit=MAX_REQUEST)
        self._started.set()
        await self._closing.wait()
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
                answer = {"run": self._run, "table": self.answer(request)}
            else:
                return
            writer.write(json.dumps(answer).encode() + b"\n")
            await asyncio.wait_for(writer.drain(), IDLE_SECONDS)


def _listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at `host`; at all addresses where `host` is not an address of this machine."""
    family, address = _address(host, port)
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as cause:
            if cause.errno != errno.EADDRNOTAVAIL:
                raise
            # Behind a Kubernetes service, or another address translation, no machine has the address that all use.
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
        return socket.AF_INET, ("", port)  # The machine's own name: it means the loopback address on this machine only.
    return family, address


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
