"""Checks whether the port or the Unix socket is free."""

import errno
import os
import socket
import stat
import sys
from pathlib import Path

from omlx_server.doctor.finding import Finding, fail, ok

# sun_path of sockaddr_un, less the zero at its end.
LONGEST_SOCKET = 103 if sys.platform == "darwin" else 107
_DIALLING_SECONDS = 1.0


def try_port(host: str, port: int) -> str:
    """Return why a server can't bind this address; empty if it can. Binds it for a moment."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
    except OSError as error:
        return "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return ""


def try_socket(path: Path) -> str:
    """Return why a server can't listen at this Unix socket; empty if it can. Changes nothing."""
    path = path.absolute()
    if len(os.fsencode(path)) > LONGEST_SOCKET:
        return f"its path is longer than {LONGEST_SOCKET} bytes"
    place = next((each for each in path.parents if each.exists()), path.parent)
    if not os.access(place, os.W_OK | os.X_OK):
        return f"{place} can't be written"
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return "there is a file that is no socket"
    except OSError as error:
        return "" if error.errno == errno.ENOENT else error.strerror or str(error)
    return _why_taken(path)


def _why_taken(path: Path) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_DIALLING_SECONDS)
        try:
            probe.connect(str(path))
        except OSError as error:
            is_gone = error.errno in (errno.ECONNREFUSED, errno.ENOENT)
            return "" if is_gone else error.strerror or str(error)
    return "it is in use"


def listener(what: str, where: str, problem: str, served: str | None, fix: str) -> Finding:
    """Return the finding on a "port" or "socket". `served` is the version of our server that
    answers there."""
    if not problem:
        return ok(what, f"{where} is free")
    if served is not None:
        return ok(what, f"omlx-server {served} serves on {where}")
    return fail(what, f"{where} can't be used: {problem}", fix)
