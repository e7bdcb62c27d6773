"""Which server a command asks: that of the settings, or the one whose URL was given; and with which
key. Imports no HTTP library."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from omlx_server.cli.server_client.http import Asked, asked
from omlx_server.cli.shell.options import load_settings
from omlx_server.errors import UsageError
from omlx_server.settings import Settings
from omlx_server.settings.types import UNIX

_KEY = re.compile(r"[!-~]([ -~]*[!-~])?")
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def server_of(url: str, api_key: str, config: Path | None, sets: Sequence[str] = ()) -> Asked:
    """Our own config's key goes to our own server only, never to a URL from the command line.

    Raises:
        UsageError: it is no URL, or the settings are wrong, or don't tell the port; or the key is
            none, and stays unsaid.
    """
    if api_key and not _KEY.fullmatch(api_key):
        raise UsageError(
            "the API key can't travel in an HTTP header",
            hint="ASCII characters only; look for an end of line, or a space at its ends",
        )
    if url:
        return asked(url, api_key)
    return own_server(load_settings(config, sets).settings, api_key)


def own_server(settings: Settings, api_key: str = "") -> Asked:
    """The one that has these settings."""
    return replace(asked(local_url(settings), api_key or first_key(settings)), is_own=True)


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
    return keys[0].reveal() if keys else ""
