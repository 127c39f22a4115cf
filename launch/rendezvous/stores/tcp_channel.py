"""`Channel`: the connection of a client to the store that another process serves. `tcp_server.py` has the protocol."""

import json
import socket
import time

from tfdist.json_values import object_in
from tfdist.launch.rendezvous.stores.authentication import NONCE_CHARACTERS, SECRET_VARIABLE, Seal, is_proof, nonce, proof
from tfdist.launch.rendezvous.stores.interface import StoreUnavailableError
from tfdist.messages import printable

MAX_ANSWER = 64 << 20
"""Longest answer that is read, in bytes: the addresses of the largest cluster fit several times."""

MAX_PROOF = 1 << 10
"""Longest line that is read from a program that has not proved yet that it belongs to the run."""

_FOREIGN = "the program that answers is not the store of a tfdist run"


class Channel:
    """A connection whose two ends have proved within `seconds` that they belong to one run.

    Raises:
        OSError: when nothing listens there.
        StoreUnavailableError: when what listens is not the store of this run.
    """

    def __init__(self, address: tuple[str, int], key: bytes, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.socket = socket.create_connection(address, seconds)
        self._received = b""
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._prove(key, deadline)
        except BaseException:
            self.close()
            raise

    def ask(self, request: dict[str, str], seconds: float) -> dict[str, str]:
        """Sends a request; returns the table of its answer. Raises OSError or StoreUnavailableError, and is of no use then."""
        deadline = time.monotonic() + seconds
        self._send(self._sent.line(json.dumps(request).encode()), deadline)
        text = self._answered.text(self._line(deadline, MAX_ANSWER))
        answer = object_in(text) if text is not None else {}
        table = answer.get("table")
        if not isinstance(table, dict):
            raise StoreUnavailableError(printable(str(answer.get("error", _FOREIGN))[:200]))
        return {field: text for field, text in table.items() if isinstance(text, str)}

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()

    def _prove(self, key: bytes, deadline: float) -> None:
        theirs, mine = object_in(self._line(deadline, MAX_PROOF)).get("nonce"), nonce()
        if not isinstance(theirs, str) or len(theirs) != NONCE_CHARACTERS:
            raise StoreUnavailableError(_FOREIGN)
        self._send(json.dumps({"nonce": mine, "proof": proof(key, "client", theirs, mine)}).encode() + b"\n", deadline)
        answer = object_in(self._line(deadline, MAX_PROOF))
        if answer.get("refused") is True:
            raise StoreUnavailableError(f"this is the store of another run, or {SECRET_VARIABLE} differs")
        if not is_proof(answer.get("proof"), proof(key, "server", theirs, mine)):
            raise StoreUnavailableError(_FOREIGN)
        self._sent, self._answered = Seal(key, "client", theirs, mine), Seal(key, "server", theirs, mine)

    def _send(self, line: bytes, deadline: float) -> None:
        self.socket.settimeout(_left(deadline))
        self.socket.sendall(line)

    def _line(self, deadline: float, most: int) -> bytes:
        """Returns the next line. All of it has to come before the deadline."""
        parts = [self._received]
        length = len(self._received)
        while b"\n" not in parts[-1]:
            self.socket.settimeout(_left(deadline))
            parts.append(self.socket.recv(1 << 16))
            length += len(parts[-1])
            if not parts[-1] or length > most:
                raise StoreUnavailableError(_FOREIGN if length else "the connection was closed")
        line, _, self._received = b"".join(parts).partition(b"\n")
        return line + b"\n"


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
