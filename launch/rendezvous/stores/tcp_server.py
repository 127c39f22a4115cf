"""`TcpServer`: serves the tables of one run to the other processes of the job, from a thread of this process.

The protocol is tfdist's; every message is a line. The server begins with `{"tfdist": 1, "nonce": ..}`. The client answers with
its nonce and its proof (`authentication.py`), and the server with its own, or with `{"refused": true}`: it never tells the run
id. Then the client sends requests, sealed lines of JSON, `{"do": "put", "table": .., "field": .., "text": ..}`, where `do` may
also be `get` or `remove`. The answer is a sealed line, `{"table": {..}}` or `{"error": ".."}`. Any other input closes the
connection. Only the process that serves clears the tables.
"""

import asyncio
import contextlib
import errno
import ipaddress
import json
import logging
import socket
import threading
from collections.abc import Sequence
from typing import Any

from tfdist.launch.rendezvous.stores.authentication import NONCE_CHARACTERS, SECRET_VARIABLE, Seal, is_proof, nonce, proof
from tfdist.launch.rendezvous.stores.interface import CALL_SECONDS, LOOPBACK
from tfdist.launch.rendezvous.stores.tables import FullError, Limits, Tables

MAX_WARNINGS = 3
"""Most warnings about connections that were refused."""

_EVERY_FAMILY = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
"""Of a socket that listens on all interfaces: others may find the address of a name in IPv4 or in IPv6."""

_BAD_INPUT = (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError, asyncio.TimeoutError)

_log = logging.getLogger("tfdist")

Address = tuple[socket.AddressFamily, Any]
"""A family, and an address of it as `socket.bind` takes it."""


class TcpServer:
    """The tables of one run, served at `addresses` until `close`. Raises OSError when this process cannot listen there."""

    def __init__(self, key: bytes, addresses: Sequence[Address], limits: Limits) -> None:
        self._key = key
        self._limits = limits
        self._warnings = 0
        self.tables = Tables(limits)
        self._strangers: dict[asyncio.Task[None], None] = {}  # In the order of their arrival, and so are members.
        self._members: dict[asyncio.Task[None], None] = {}
        listeners = _listen(addresses)
        self.port = int(listeners[0].getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._closing: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run_loop, args=(listeners,), name="tfdist-store", daemon=True)
        self._thread.start()
        self._started.wait(CALL_SECONDS)

    def close(self) -> None:
        """Closes the server and every connection to it."""
        closing = self._closing
        if closing is not None:
            self._loop.call_soon_threadsafe(closing.set)
        self._thread.join(CALL_SECONDS)

    def _run_loop(self, listeners: list[socket.socket]) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve(listeners))

    async def _serve(self, listeners: list[socket.socket]) -> None:
        self._closing = asyncio.Event()
        limit = self._limits.request_bytes
        servers = [await asyncio.start_server(self._connected, sock=each, limit=limit) for each in listeners]
        self._started.set()
        await self._closing.wait()
        for server in servers:
            server.close()
        connections = [*self._strangers, *self._members]
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        _admit(task, self._strangers, self._limits.strangers)
        try:
            seals = await asyncio.wait_for(self._prove(reader, writer), self._limits.proof_seconds)
            if seals is not None:
                del self._strangers[task]
                _admit(task, self._members, self._limits.members)
                await self._converse(reader, writer, *seals)
            writer.close()
        except _BAD_INPUT:
            writer.transport.abort()  # A port scanner, a browser, or a rank that died.
        except asyncio.CancelledError:
            # The server closes, or others came. (Python 3.11 logs a connection's task that ends as cancelled.)
            writer.transport.abort()
        finally:
            self._strangers.pop(task, None)
            self._members.pop(task, None)

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Seal, Seal] | None:
        """Returns the seals of the client's and the server's lines; None for a client of another run."""
        mine = nonce()
        writer.write(json.dumps({"tfdist": 1, "nonce": mine}).encode() + b"\n")
        given = json.loads(await reader.readline())
        theirs = given["nonce"]
        if not isinstance(theirs, str) or len(theirs) != NONCE_CHARACTERS:
            raise ValueError
        if not is_proof(given["proof"], proof(self._key, "client", mine, theirs)):
            writer.write(b'{"refused": true}\n')
            self._warn(str(writer.get_extra_info("peername", "?")[0]).removeprefix("::ffff:"))
            return None
        writer.write(json.dumps({"proof": proof(self._key, "server", mine, theirs)}).encode() + b"\n")
        return Seal(self._key, "client", mine, theirs), Seal(self._key, "server", mine, theirs)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: Seal, server: Seal) -> None:
        while line := await asyncio.wait_for(reader.readline(), self._limits.idle_seconds):
            text = client.text(line)
            if text is None:
                raise ValueError
            answer: dict[str, Any]
            try:
                answer = {"table": self._answer(json.loads(text))}
            except FullError:
                answer = {"error": "the store is full; another program may write into it"}
            writer.write(server.line(json.dumps(answer).encode()))
            await asyncio.wait_for(writer.drain(), self._limits.idle_seconds)

    def _answer(self, request: dict[str, str]) -> dict[str, str]:
        table = request["table"]
        match request["do"]:
            case "get":
                return self.tables.get(table)
            case "remove":
                self.tables.remove(table, request["field"], is_own=False)
            case "put" if isinstance(request["text"], str):
                self.tables.put(table, request["field"], request["text"], is_own=False)
            case _:
                raise ValueError
        return {}

    def _warn(self, peer: str) -> None:
        self._warnings += 1
        if self._warnings <= MAX_WARNINGS:
            _log.warning("the rendezvous refused a process at %s: its run id or %s is another", peer, SECRET_VARIABLE)


def _admit(task: "asyncio.Task[None]", connections: "dict[asyncio.Task[None], None]", most: int) -> None:
    """Adds a connection; closes the oldest one if there are too many. A stranger that floods the port locks nobody out."""
    connections[task] = None
    if len(connections) > most:
        oldest = next(iter(connections))
        del connections[oldest]
        oldest.cancel()


def listening_addresses(host: str, port: int) -> tuple[list[Address], str]:
    """Returns where the store of `host` listens on this machine, and why if that is every address, else an empty text.

    A machine may have an IPv4 and an IPv6 address, and others reach only one of them.

    Raises:
        OSError: when nothing knows the name `host`.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses: list[Address] = [*dict.fromkeys((family, address) for family, _, _, _, address in found)]
    everywhere: list[Address] = [(_EVERY_FAMILY, ("", port))]
    is_name = not _is_address(host) and host.lower() not in LOOPBACK
    if is_name and ipaddress.ip_address(str(addresses[0][1][0]).partition("%")[0]).is_loopback:
        return everywhere, f"{host} is a loopback address on this machine only"
    if own := [each for each in addresses if _is_own(*each)]:
        return own, ""
    # Behind a Kubernetes service, or another address translation, no machine has the address that all use.
    return everywhere, f"{host} is no address of this machine"


def _is_own(family: socket.AddressFamily, address: Any) -> bool:
    try:
        with socket.socket(family) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError as cause:
        return cause.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # Else to listen there says what is wrong.
    return True


def _listen(addresses: Sequence[Address]) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    try:
        for family, address in addresses:
            listeners.append(listener := socket.socket(family))
            if family == socket.AF_INET6 and not address[0]:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(socket.SOMAXCONN)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
