"""Decides which server a command asks, and with which API key."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from omlx_server.cli.server_client.http import ServerClient, server_at
from omlx_server.cli.shell.options import load_settings
from omlx_server.errors import UsageError
from omlx_server.settings import Settings
from omlx_server.settings.types import UNIX

# Printable ASCII without a blank at its ends.
_API_KEY = re.compile(r"[!-~]([ -~]*[!-~])?")
# A server that listens at all addresses of a machine is reached at its loopback address.
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def server_of(
    url: str, api_key: str, config: Path | None, sets: Sequence[str] = ()
) -> ServerClient:
    """Return the server at `url`, or else the one of the settings, which alone gets their key.
    Raises UsageError, which never shows the key."""
    if api_key and not _API_KEY.fullmatch(api_key):
        raise UsageError(
            "the API key can't travel in an HTTP header",
            hint="ASCII characters only; look for an end of line, or a space at its ends",
        )
    if url:
        return server_at(url, api_key)
    return own_server(load_settings(config, sets).settings, api_key)


def own_server(settings: Settings, api_key: str = "") -> ServerClient:
    """Return the server of these settings, with `api_key` or their first key. Raises UsageError."""
    key = api_key or next((key.reveal() for key in settings.auth.api_keys), "")
    return replace(server_at(local_url(settings), key), is_own=True)


def local_url(settings: Settings) -> str:
    """Return the URL, or `unix:PATH`, on this machine. Raises UsageError if server.port is 0."""
    if settings.server.uds:
        return f"{UNIX}{Path(settings.server.uds).absolute()}"
    if settings.server.port == 0:
        raise UsageError("server.port is 0, so its real port is unknown", hint="give --url")
    host = _LOOPBACK.get(settings.server.host, settings.server.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.server.port}"
