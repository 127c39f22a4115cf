"""How two processes prove to each other that they belong to one run, without telling anybody the run id or the secret.

Both know a key, made of the run id and of TFDIST_RENDEZVOUS_SECRET if it is set. The server sends a random number, the client
another one with the HMAC (RFC 2104) of both, and the server answers with its own HMAC. `multiprocessing.connection` does the
same. Every later line carries an HMAC with a key of this connection, its direction and its number, so nobody on the way can
change, repeat or add one. Nothing is encrypted.
"""

import hashlib
import hmac
import os
import secrets

from tfdist.errors import ClusterError
from tfdist.rank_info import RankInfo

SECRET_VARIABLE = "TFDIST_RENDEZVOUS_SECRET"
"""A secret that all processes of a run share. Without it, whoever knows the run id may take part."""

MIN_SECRET = 16
"""Fewest characters of a secret. Whoever answers in place of the server could try shorter ones, one after the other."""

NONCE_CHARACTERS = 32
MAC_CHARACTERS = 64


def shared_secret() -> str:
    """Returns the secret of this process; empty without one. Raises ClusterError for one that is too short."""
    secret = os.environ.get(SECRET_VARIABLE, "")
    if secret and len(secret) < MIN_SECRET:
        raise ClusterError(
            f"{SECRET_VARIABLE}: it has {len(secret)} characters; give all processes the same random {MIN_SECRET} or more"
        )
    return secret


def run_secret(rank_info: RankInfo, secret: str) -> bytes:
    """Returns the key that only the processes of a run know."""
    store = rank_info.store
    # Two torchruns on a machine have the same run id, and several ports in common at which they look for their stores.
    place = f" {store.port}" if store is not None and store.ports > 1 else ""
    parts = (part.encode("utf-8", "surrogatepass") for part in (secret, rank_info.run_id + place))
    return b"".join(hashlib.sha256(part).digest() for part in parts)


def nonce() -> str:
    """Returns a new random number, as text."""
    return secrets.token_hex(NONCE_CHARACTERS // 2)


def proof(key: bytes, role: str, server_nonce: str, client_nonce: str) -> str:
    """Returns the proof that a process, `server` or `client`, knows `key`."""
    return _mac(key, f"{role} {server_nonce} {client_nonce}".encode("utf-8", "surrogatepass"))


def is_proof(given: object, expected: str) -> bool:
    """Returns whether `given` is the expected proof, always in the same time."""
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


class Seal:
    """The lines that `role`, `server` or `client`, sends over a connection: text and its HMAC, numbered."""

    def __init__(self, key: bytes, role: str, server_nonce: str, client_nonce: str) -> None:
        self._key = bytes.fromhex(proof(key, f"lines of the {role}", server_nonce, client_nonce))
        self._number = 0

    def line(self, text: bytes) -> bytes:
        """Returns the next line, with which `text` is sent. `text` has no line break."""
        return self._next_mac(text).encode() + text + b"\n"

    def text(self, line: bytes) -> bytes | None:
        """Returns the text of the next line that was received; None if the sender did not send it so."""
        text = line[MAC_CHARACTERS:].removesuffix(b"\n")
        return text if hmac.compare_digest(line[:MAC_CHARACTERS], self._next_mac(text).encode()) else None

    def _next_mac(self, text: bytes) -> str:
        self._number += 1
        return _mac(self._key, self._number.to_bytes(8, "big") + text)


def _mac(key: bytes, text: bytes) -> str:
    return hmac.new(key, text, hashlib.sha256).hexdigest()
