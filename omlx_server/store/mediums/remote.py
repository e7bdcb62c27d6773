"""Opens the remote medium that a URL names. Its package is an extra, so it is imported only
then."""

from omlx_server.errors import ConfigError, how_to_install
from omlx_server.store.mediums.medium import Medium

REDIS = ("redis", "rediss", "valkey", "valkeys", "unix")
_DAY_SECONDS = 86_400
OBJECTS = ("s3", "gs", "az", "file", "memory")


def open_remote(url: str, *, timeout: float, ttl_days: float = 0) -> Medium:
    """Open the medium of a URL. `timeout` in seconds. Redis forgets a block that nobody read for
    `ttl_days`; 0 keeps it. Object stores have rules of their own.

    Raises ConfigError. A URL may hold a password, so that messages say no more than its scheme, and
    no cause is chained to them.
    """
    scheme = scheme_of(url)
    open_medium = _open_redis if scheme in REDIS else _open_objects
    try:
        return open_medium(url, timeout, ttl_days)
    except ImportError:
        extra = "redis" if scheme in REDIS else "objectstore"
        raise ConfigError(
            f"a cold store at {scheme}:// needs the extra {extra!r}",
            hint=how_to_install(extra),
        ) from None
    except (ValueError, TypeError):
        raise ConfigError(
            f"the cold store's {scheme}:// URL can't be used",
            hint="check its host, port and options",
        ) from None


def _open_redis(url: str, timeout: float, ttl_days: float) -> Medium:
    from omlx_server.store.mediums.redis import Redis

    return Redis(url, timeout=timeout, ttl_seconds=round(ttl_days * _DAY_SECONDS) or None)


def _open_objects(url: str, timeout: float, ttl_days: float) -> Medium:
    from omlx_server.store.mediums.objects import Objects

    return Objects(url, timeout=timeout)


def scheme_of(url: str) -> str:
    """The scheme of a URL, in lower case. Raises ConfigError for one that no store has."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme not in REDIS + OBJECTS:
        known = ", ".join(f"{name}://" for name in REDIS + OBJECTS)
        raise ConfigError("the cold store's URL has no known scheme", hint=f"use one of {known}")
    return scheme
