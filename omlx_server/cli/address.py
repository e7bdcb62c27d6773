"""Where the server of these settings is, and the key that it wants. Imports no HTTP library."""

from pathlib import Path

from omlx_server.errors import UsageError
from omlx_server.settings import Settings
from omlx_server.settings.types import UNIX

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def local_url(settings: Settings) -> str:
    """Where a server with these settings is reached from its own machine: a URL, or `unix:PATH`.

    Raises:
        UsageError: it takes any free port.
    """
    if settings.server.uds:
        return f"{UNIX}{Path(settings.server.uds).absolute()}"
    if settings.server.port == 0:
        raise UsageError("server.port is 0, so its real port is unknown", hint="give --url")
    host = _ANY.get(settings.server.host, settings.server.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.server.port}"


def first_key(settings: Settings) -> str:
    keys = settings.auth.api_keys
    return keys[0].get_secret_value() if keys else ""
