"""A medium in Redis or Valkey: one string per block. Owned by the I/O thread."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, parse_url
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError
from redis.retry import Retry

from omlx_server.store.mediums.medium import (
    REMOTE_MAX_BYTES,
    Buffer,
    MediumError,
    Name,
    require_fits,
)

REASONS: tuple[tuple[type[Exception], str], ...] = (
    (redis.TimeoutError, "timeout"),
    (redis.ConnectionError, "unreachable"),
    (OutOfMemoryError, "full"),
    (ReadOnlyError, "read-only"),
)


class Redis:
    """`timeout`: seconds of each wait on the socket. Redis forgets blocks unused for
    `ttl_seconds`. Raises ValueError or TypeError for a bad URL; the text may hold secrets."""

    max_bytes = REMOTE_MAX_BYTES

    def __init__(self, url: str, *, timeout: float, ttl_seconds: int | None = None) -> None:
        # These win over the URL's: no retries, and no decoding of blocks as text.
        options = {
            **parse_url(re.sub("^valkey", "redis", url)),  # type: ignore[no-untyped-call]
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),
            "decode_responses": False,
            "protocol": 2,
        }
        pool = ConnectionPool(**options)
        # Make a connection without connecting: an unknown option fails now, not in a call.
        pool.connection_class(**pool.connection_kwargs)
        self._client = redis.Redis(connection_pool=pool)
        self._pool = pool
        self._ttl_seconds = ttl_seconds

    def get(self, name: Name) -> bytes | None:
        with _as_medium_errors():
            require_fits(int(self._client.strlen(_key(name))), self.max_bytes)
            # Bytes, because decode_responses is off.
            content = cast("bytes | None", self._client.get(_key(name)))
            if content is not None and self._ttl_seconds:
                self._client.expire(_key(name), self._ttl_seconds)  # from the last use
            return content

    def put(self, name: Name, parts: Sequence[Buffer]) -> None:
        content = b"".join(parts)
        require_fits(len(content), self.max_bytes)
        with _as_medium_errors():
            self._client.set(_key(name), content, ex=self._ttl_seconds)

    def contains_many(self, names: Iterable[Name]) -> set[Name]:
        listed = list(names)
        with _as_medium_errors(), self._client.pipeline(transaction=False) as pipeline:
            for name in listed:
                if self._ttl_seconds:  # also says whether the key exists
                    pipeline.expire(_key(name), self._ttl_seconds)
                else:
                    pipeline.exists(_key(name))
            answers = pipeline.execute()
        return {name for name, is_stored in zip(listed, answers, strict=True) if is_stored}

    def delete(self, name: Name) -> None:
        with _as_medium_errors():
            self._client.delete(_key(name))

    def close(self) -> None:
        with _as_medium_errors():
            self._pool.disconnect()


def _key(name: Name) -> str:
    return f"omlx:{name.namespace}:{name.key}"


@contextmanager
def _as_medium_errors() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        reason = next((word for kind, word in REASONS if isinstance(error, kind)), "io")
        raise MediumError(reason, f"redis: {error}") from error
