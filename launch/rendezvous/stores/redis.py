"""`RedisStore`: a store in a Redis server, as Caffe2's `redis_host` and `redis_port` name it. Needs the extra `redis`.

A table is a hash, `tfdist:RUN:TABLE`. It expires, so that the entries of a dead run disappear.
"""

import re
import socket
from typing import Any
from urllib.parse import quote

from tfdist.errors import ClusterError
from tfdist.extras import pip_install
from tfdist.launch.rendezvous.stores.bounded import BoundedCalls
from tfdist.launch.rendezvous.stores.interface import CALL_SECONDS, StoreUnavailableError, host_towards, run_key
from tfdist.messages import printable, without_secrets
from tfdist.rank_info import RankInfo

_OF_PIPELINE = re.compile(r"^Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
"""What the client library says before the answer of the server: the command with its values."""

_PASSING = ("ReadOnlyError", "OutOfMemoryError", "ClusterDownError", "MasterDownError", "TryAgainError")
"""Errors of a server that takes entries again later: another one has its place meanwhile, or its memory is full."""

_PASSING_WORDS = ("MISCONF ", "NOREPLICAS ", "BUSY ")
"""The same, as answers begin that the client library does not know."""


class RedisStore:
    """The tables of one run, in the server that `rank_info.store` names."""

    def __init__(self, rank_info: RankInfo, lifetime_seconds: float, timeout_seconds: float) -> None:
        """Prepares the connection. Raises ClusterError when the client library is missing."""
        try:
            import redis
        except ImportError:
            raise rank_info.source.error(
                f"the ranks exchange addresses in a Redis store, whose client library is not installed: {pip_install('redis')}"
            ) from None
        store = rank_info.store
        assert store is not None and store.host is not None
        self._source = rank_info.source
        self._password = store.password
        self._errors: Any = redis.exceptions
        self._host, self._port = store.host, store.port or 6379
        self._lifetime_seconds = int(lifetime_seconds) + 1
        self._prefix = f"tfdist:{run_key(rank_info)}"
        self._tables: set[str] = set()
        self._calls = BoundedCalls(f"the Redis server at {self._host}:{self._port}, or the name server,", timeout_seconds)
        self._client: Any = redis.Redis(
            host=self._host,
            port=self._port,
            password=self._password,
            socket_timeout=CALL_SECONDS,
            socket_connect_timeout=CALL_SECONDS,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),  # The rendezvous repeats calls.
            decode_responses=True,
            encoding_errors="replace",
        )

    def put(self, table: str, field: str, text: str) -> None:
        """Sets one field."""

        def run() -> None:
            with self._client.pipeline(transaction=True) as pipeline:
                pipeline.hset(self._key(table), field, text)
                pipeline.expire(self._key(table), self._lifetime_seconds)
                pipeline.execute()

        self._call(run)

    def get(self, table: str) -> dict[str, str]:
        """Returns all fields of a table."""
        fields: dict[str, str] = self._call(lambda: self._client.hgetall(self._key(table)))
        return fields

    def remove(self, table: str, field: str) -> None:
        """Removes a field, if it exists."""
        self._call(lambda: self._client.hdel(self._key(table), field))

    def clear(self) -> None:
        """Removes all tables of the run."""
        self._call(lambda: self._client.delete(*map(self._key, sorted(self._tables))))

    def own_host(self) -> str:
        """Returns the address from which this process reaches the server."""

        def connect() -> str:
            with socket.create_connection((self._host, self._port), CALL_SECONDS) as connected:
                return host_towards(connected, self._host)

        try:
            return self._calls.run(connect, 2 * CALL_SECONDS)
        except (OSError, UnicodeError) as cause:
            raise self._unavailable(cause) from cause

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _key(self, table: str) -> str:
        self._tables.add(table)
        return f"{self._prefix}:{table}"

    def _call(self, run: Any) -> Any:
        errors = self._errors
        try:
            return self._calls.run(run, 2 * CALL_SECONDS)  # The client's own limits do not include the look-up of the name.
        except (errors.AuthenticationError, errors.NoPermissionError):
            problem = "refuses this password" if self._password is not None else "wants a password"
            raise self._refusal(f"{problem}; give it as redis_password or in TFDIST_REDIS_PASSWORD") from None
        except (errors.ConnectionError, errors.TimeoutError) as cause:
            # Also raised by a server that still loads its data.
            raise self._unavailable(cause) from None
        except errors.ResponseError as cause:
            answer = self._without_password(cause)
            if type(cause).__name__ not in _PASSING and not answer.startswith(_PASSING_WORDS):
                raise self._refusal(f"answers {answer}") from None
            self._client.connection_pool.disconnect()  # Its name may lead to another server by then.
            raise StoreUnavailableError(f"the Redis server at {self._host}:{self._port} answers {answer}") from None
        except errors.RedisError as cause:
            raise self._unavailable(cause) from None

    def _refusal(self, why: str) -> ClusterError:
        return self._source.error(f"the Redis server at {self._host}:{self._port} {why}")

    def _unavailable(self, cause: Exception) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"no answer from the Redis server at {self._host}:{self._port}: {self._without_password(cause)}"
        )

    def _without_password(self, cause: Exception) -> str:
        text = _OF_PIPELINE.sub("", str(cause))
        for secret in {self._password, repr(self._password)[1:-1], quote(self._password)} if self._password else ():
            text = text.replace(secret, "***")
        return printable(without_secrets(text))[:200]
