"""Entries in a Redis server, which several servers may share, and which outlives them.

Guarantees: nothing that Redis does fails a request. It may be gone, slow, refuse the password or return anything: then
there is no entry. A question takes at most `socket_timeout`. After a failed question nothing is asked for RETRY_S, so
that requests do not wait in turn for a missing server; then one question tries again. The log says when Redis can no
longer be used, and when it can again, not at every request.

The client is the `redis` package's (`pip install 'stubserve[redis]'`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from stubserve.errors import unsupported
from stubserve.settings.cache import RedisSettings

log = logging.getLogger("stubserve.cache")

T = TypeVar("T")

# In front of each key, so that others can use the Redis server as well
PREFIX = b"stubserve:1:"
RETRY_S = 1.0
# Unusable entries and refused questions are logged at most this often.
_TELL_S = 60.0


class RedisStore:
    """A store of values up to `most_bytes`. Lives on the event loop. No method raises anything.

    The constructor raises ServeError UNSUPPORTED if the package is missing.
    """

    def __init__(self, settings: RedisSettings, most_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._refusals = _client(settings)
        self._where = f"{settings.host}:{settings.port}"
        self._timeout_s = settings.timeout_s
        self._ttl_s = settings.ttl_s
        self._most_bytes = most_bytes
        self._clock = clock
        # While Redis cannot be used: the time from which it may be asked again
        self._retry_at_s: float | None = None
        self._told_at_s = float("-inf")

    async def get(self, key: bytes) -> bytes:
        """The value of a key; empty if there is none."""
        # One byte more than allowed shows that the value is too large.
        found = await self._ask(lambda: self._client.getrange(PREFIX + key.hex().encode(), 0, self._most_bytes))
        return cast(bytes, found) if found else b""

    async def put(self, key: bytes, value: bytes) -> None:
        await self._ask(lambda: self._client.set(PREFIX + key.hex().encode(), value, ex=self._ttl_s or None))

    def distrust(self, key: bytes, why: str) -> None:
        """Reports that the value of a key is no entry."""
        self._tell(
            "the response cache in Redis at %s has an entry that is not used and will be replaced: %s (key %s)",
            self._where,
            why,
            key.hex(),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T | None:
        """The answer to a question; None if there is none."""
        if self._retry_at_s is not None:
            if self._clock() < self._retry_at_s:
                return None
            self._retry_at_s = self._clock() + RETRY_S  # this question tries; others do not wait for it
        try:
            answer = await asyncio.wait_for(question(), self._timeout_s)
        except asyncio.CancelledError:
            raise
        except self._refusals as refusal:
            # Redis refuses: because of a value of another kind under this key, or for want of memory.
            self._tell("the response cache in Redis at %s refuses commands: %s", self._where, refusal)
            return None
        except Exception as wrong:
            self._failed(wrong)
            return None
        if self._retry_at_s is not None:
            self._retry_at_s = None
            log.info("the response cache in Redis at %s can be used again", self._where)
        return answer

    def _tell(self, text: str, *words: object) -> None:
        """Logs, at most every _TELL_S, what may happen at every request."""
        if self._clock() - self._told_at_s > _TELL_S:
            self._told_at_s = self._clock()
            log.warning(text, *words)

    def _failed(self, wrong: Exception) -> None:
        first = self._retry_at_s is None
        self._retry_at_s = self._clock() + RETRY_S
        if first:
            reason = (
                "it did not answer in time" if isinstance(wrong, asyncio.TimeoutError) else str(wrong) or repr(wrong)
            )
            log.warning(
                "the response cache in Redis at %s cannot be used, and requests are computed until it can: %s",
                self._where,
                reason,
            )


def _client(settings: RedisSettings) -> tuple[Any, type[Exception]]:
    """A client, and the exception that it raises for an error of Redis."""
    try:
        from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import ResponseError
    except ImportError:
        raise unsupported("--cache-config=redis,... needs a package: run `pip install 'stubserve[redis]'`") from None
    options: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "db": settings.db,
        "username": settings.user or None,
        "password": settings.password or None,
        "socket_timeout": settings.timeout_s,
        "socket_connect_timeout": settings.connect_timeout_s,
        # Opens a connection anew that was closed while unused.
        "retry": Retry(NoBackoff(), 1),
        "connection_class": Connection,
    }
    if settings.tls:
        options |= {
            "connection_class": SSLConnection,
            "ssl_ca_certs": settings.cacert or None,
            "ssl_ca_path": settings.cacert_dir or None,
            "ssl_certfile": settings.cert or None,
            "ssl_keyfile": settings.key or None,
        }
    pool = BlockingConnectionPool(max_connections=settings.pool_size, timeout=settings.wait_timeout_s, **options)
    return Redis.from_pool(pool), ResponseError
