"""The store in a Redis server, as Caffe2's `redis_host` and `redis_port`. Needs the extra `redis`.

A table is a hash, `tfdist:RUN:TABLE`; it expires, so that a run that died leaves nothing for long.
"""

import socket
from typing import Any

from tfdist.errors import ClusterError
from tfdist.launch.rendezvous.stores.store import CALL_SECONDS, StoreUnavailableError, host_towards, run_key
from tfdist.rank_info import RankInfo


def open_store(rank_info: RankInfo, is_host: bool, lifetime_seconds: float) -> "RedisStore":
    """See `tfdist.launch.rendezvous.stores.store`. Raises ClusterError where the client library is missing."""
    del is_host
    try:
        import redis
    except ImportError:
        raise rank_info.source.error(
            "the ranks meet in a Redis store, and its client library is not installed; pip install 'tfdist[redis]'"
        ) from None
    return RedisStore(rank_info, redis, lifetime_seconds)


class RedisStore:
    """The tables of one run, in the server that `membership.store` names."""

    def __init__(self, rank_info: RankInfo, redis: Any, lifetime_seconds: float) -> None:
        store = rank_info.store
        assert store is not None and store.host is not None
        self._membership = rank_info
        self._redis = redis
        self._host, self._port = store.host, store.port or 6379
        self._seconds = int(lifetime_seconds) + 1
        self._prefix = f"tfdist:{run_key(rank_info)}"
        self._tables: set[str] = set()
        self._client = redis.Redis(
            host=self._host,
            port=self._port,
            password=store.password,
            socket_timeout=CALL_SECONDS,
            socket_connect_timeout=CALL_SECONDS,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),  # The rendezvous tries again itself.
            decode_responses=True,
            encoding_errors="replace",
        )

    def put(self, table: str, field: str, text: str) -> None:
        """Sets one field."""

        def run() -> None:
            with self._client.pipeline(transaction=True) as pipeline:
                pipeline.hset(self._key(table), field, text)
                pipeline.expire(self._key(table), self._seconds)
                pipeline.execute()

        self._call(run)

    def get(self, table: str) -> dict[str, str]:
        """All fields of a table."""
        fields: dict[str, str] = self._call(lambda: self._client.hgetall(self._key(table)))
        return fields

    def remove(self, table: str, field: str) -> None:
        """Takes a field away, if it is there."""
        self._call(lambda: self._client.hdel(self._key(table), field))

    def clear(self) -> None:
        """Takes everything of this run away."""
        self._call(lambda: self._client.delete(*map(self._key, sorted(self._tables))))

    def my_host(self) -> str:
        """The address from which this process reaches the server."""
        try:
            with socket.create_connection((self._host, self._port), CALL_SECONDS) as connected:
                return host_towards(connected, self._host)
        except OSError as cause:
            raise self._unavailable(cause) from cause

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()

    def _key(self, table: str) -> str:
        self._tables.add(table)
        return f"{self._prefix}:{table}"

    def _call(self, run: Any) -> Any:
        errors = self._redis.exceptions
        try:
            return run()
        except (errors.AuthenticationError, errors.NoPermissionError):
            raise self._refused("wants another password, or one at all" if self._has_password else "wants a password") from None
        except (errors.ConnectionError, errors.TimeoutError) as cause:
            # A server that is still loading its data says so with a ConnectionError, too.
            raise self._unavailable(cause) from None
        except errors.ResponseError as cause:
            raise self._refused(f"answers {self._without_password(cause)}") from None
        except errors.RedisError as cause:
            raise self._unavailable(cause) from None

    @property
    def _has_password(self) -> bool:
        assert self._membership.store is not None
        return self._membership.store.password is not None

    def _refused(self, why: str) -> ClusterError:
        return self._membership.source.error(
            f"the Redis server at {self._host}:{self._port} {why}; give it as redis_password or in TFDIST_REDIS_PASSWORD"
            if "password" in why
            else f"the Redis server at {self._host}:{self._port} {why}"
        )

    def _unavailable(self, cause: Exception) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"no answer from the Redis server at {self._host}:{self._port}: {self._without_password(cause)}"
        )

    def _without_password(self, cause: Exception) -> str:
        assert self._membership.store is not None
        text, password = str(cause)[:200], self._membership.store.password
        return text.replace(password, "***") if password else text
