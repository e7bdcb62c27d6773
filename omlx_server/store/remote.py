"""From a URL to the medium behind it. The packages are extras, so they are loaded when named."""

from importlib import import_module

from omlx_server.errors import ConfigError
from omlx_server.store.medium import Medium

REDIS = ("redis", "rediss", "valkey", "valkeys", "unix")
OBJECTS = ("s3", "gs", "az", "file", "memory")


def open_remote(url: str, *, timeout: float) -> Medium:
    """Raises ConfigError. A URL may hold a password, so that messages say no more than its scheme,
    and no cause is chained to them."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme not in REDIS + OBJECTS:
        known = ", ".join(f"{name}://" for name in REDIS + OBJECTS)
        raise ConfigError("the cold store's URL has no known scheme", hint=f"use one of {known}")
    module, kind, extra = (
        ("redis", "Redis", "redis") if scheme in REDIS else ("objects", "Objects", "objectstore")
    )
    try:
        open_medium = getattr(import_module(f"omlx_server.store.{module}"), kind)
    except ImportError:
        raise _missing(scheme, extra) from None
    try:
        medium: Medium = open_medium(url, timeout=timeout)
    except (ValueError, TypeError):
        raise _malformed(scheme) from None
    return medium


def _missing(scheme: str, extra: str) -> ConfigError:
    return ConfigError(
        f"a cold store at {scheme}:// needs the extra {extra!r}",
        hint=f"pip install 'omlx-server[{extra}]'",
    )


def _malformed(scheme: str) -> ConfigError:
    return ConfigError(
        f"the cold store's {scheme}:// URL can't be used", hint="check its host, port and options"
    )
