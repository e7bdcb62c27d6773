"""The page of a server, and a browser for it."""

import os
import sys
import webbrowser
from collections.abc import Mapping

from omlx_server.cli.server_client.http import ServerClient, socket_of

_OK = 200
_REMOTE = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")


def page_of(server: ServerClient) -> str:
    """Return the URL of a server's page; empty if a browser can't open it. Raises NoAnswer."""
    if socket_of(server.url):
        return ""
    reply = server.get("/web/index.html")
    return f"{server.url}/" if reply.status == _OK and reply.body.lstrip()[:1] == b"<" else ""


def open_page(url: str) -> None:
    """Open a page in a browser if stdout is a terminal of a desktop."""
    if sys.stdout.isatty() and has_desktop(os.environ, sys.platform):
        webbrowser.open(url)


def has_desktop(environ: Mapping[str, str], platform: str) -> bool:
    """Whether a browser can show a window: not over SSH, and on Linux only with a display."""
    if any(environ.get(name) for name in _REMOTE):
        return False
    return platform != "linux" or any(environ.get(name) for name in _SCREENS)
