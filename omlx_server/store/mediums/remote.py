"""Opens the remote medium of a URL; its package is an extra."""

from omlx_server.errors import ConfigError, how_to_install
from omlx_server.store.mediums.medium import Medium

_REDIS_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")
_DAY_SECONDS = 86_400
_OBJECT_SCHEMES = ("s3", "gs", "az", "file", "memory")


def open_remote(url: str, *, timeout: float, ttl_days: float = 0) -> Medium:
    """Open the medium of a URL. `timeout` in seconds. Raises ConfigError, which names only the
    scheme and chains no cause: URLs may hold passwords."""
    scheme = scheme_of(url)
    try:
        if scheme in _REDIS_SCHEMES:
            from omlx_server.store.mediums.redis import Redis

            return Redis(url, timeout=timeout, ttl_seconds=round(ttl_days * _DAY_SECONDS) or None)
        from omlx_server.store.mediums.objects import Objects

        return Objects(url, timeout=timeout)
    except ImportError:
        extra = "redis" if scheme in _REDIS_SCHEMES else "objectstore"
        raise ConfigError(
            f"a cold store at {scheme}:// needs the extra {extra!r}", hint=how_to_install(extra)
        ) from None
    except (ValueError, TypeError):
        raise ConfigError(
            f"the cold store's {scheme}:// URL can't be used",
            hint="check its host, port and options",
        ) from None


def scheme_of(url: str) -> str:
    """Return the lower-case scheme. Raises ConfigError for an unknown one."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme not in _REDIS_SCHEMES + _OBJECT_SCHEMES:
        schemes = ", ".join(f"{name}://" for name in _REDIS_SCHEMES + _OBJECT_SCHEMES)
        raise ConfigError("the cold store's URL has no known scheme", hint=f"use one of {schemes}")
    return scheme
