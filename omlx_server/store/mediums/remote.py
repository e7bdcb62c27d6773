"""From a URL to the medium behind it. The packages are extras, so they are loaded when named."""

import hashlib
from collections.abc import Iterable, Sequence
from importlib import import_module

from omlx_server.errors import ConfigError
from omlx_server.store.mediums.medium import Buffer, Medium, MediumStats, Name

REDIS = ("redis", "rediss", "valkey", "valkeys", "unix")
_DAY_SECONDS = 86_400
OBJECTS = ("s3", "gs", "az", "file", "memory")


def open_remote(url: str, *, timeout: float, ttl_days: float = 0) -> Medium:
    """`ttl_days` without a use until Redis forgets a block; object stores have rules of their own.

    Raises ConfigError. A URL may hold a password, so that messages say no more than its scheme,
    and no cause is chained to them."""
    scheme = scheme_of(url)
    options: dict[str, float | None] = {"timeout": timeout}
    if scheme in REDIS:
        module, kind, extra = "redis", "Redis", "redis"
        options["ttl_seconds"] = round(ttl_days * _DAY_SECONDS) or None
    else:
        module, kind, extra = "objects", "Objects", "objectstore"
    try:
        open_medium = getattr(import_module(f"omlx_server.store.mediums.{module}"), kind)
    except ImportError:
        raise _missing(scheme, extra) from None
    try:
        medium: Medium = open_medium(url, **options)
    except (ValueError, TypeError):
        raise _malformed(scheme) from None
    return medium


def scheme_of(url: str) -> str:
    """Raises ConfigError for one that no store has."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme not in REDIS + OBJECTS:
        known = ", ".join(f"{name}://" for name in REDIS + OBJECTS)
        raise ConfigError("the cold store's URL has no known scheme", hint=f"use one of {known}")
    return scheme


class Apart:
    """A store in which servers with another secret have names of their own: they could not use each
    other's blocks, and would write over them."""

    def __init__(self, medium: Medium, secret: bytes) -> None:
        self._medium = medium
        self._secret = secret

    def get(self, name: Name) -> bytes | None:
        return self._medium.get(self._own(name))

    def put(self, name: Name, parts: Sequence[Buffer]) -> None:
        self._medium.put(self._own(name), parts)

    def contains_many(self, names: Iterable[Name]) -> set[Name]:
        asked = {self._own(name): name for name in names}
        return {asked[own] for own in self._medium.contains_many(asked)}

    def delete(self, name: Name) -> None:
        self._medium.delete(self._own(name))

    def stats(self) -> MediumStats:
        return self._medium.stats()

    def close(self) -> None:
        self._medium.close()

    def _own(self, name: Name) -> Name:
        digest = hashlib.blake2b(name.namespace.encode(), key=self._secret, digest_size=8)
        return Name(digest.hexdigest(), name.key)


def _missing(scheme: str, extra: str) -> ConfigError:
    return ConfigError(
        f"a cold store at {scheme}:// needs the extra {extra!r}",
        hint=f"pip install 'omlx-server[{extra}]'",
    )


def _malformed(scheme: str) -> ConfigError:
    return ConfigError(
        f"the cold store's {scheme}:// URL can't be used", hint="check its host, port and options"
    )
