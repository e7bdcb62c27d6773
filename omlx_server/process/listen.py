"""The socket that a server listens on."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from omlx_server.errors import UsageError
from omlx_server.process.holder import holder_of
from omlx_server.settings.types import UNIX

_BACKLOG = 2048
_PRIVATE_DIRECTORY = 0o700
_NOT_FOR_OTHERS = 0o177
_DIALLING_SECONDS = 1.0
_LAST_PORT = 65535


@contextmanager
def listening(host: str, port: int, uds: str = "") -> Iterator[socket.socket]:
    """Where a server takes requests, while the `with` lasts: the Unix socket `uds` if there is one
    in the settings, else the port. Taken before anything slow happens.

    Raises:
        UsageError: somebody else has it, or it can't be had.
    """
    if not uds:
        with bind(host, port) as sock:
            yield sock
        return
    path = Path(uds).absolute()
    with _bind_unix(path) as sock:
        own = path.lstat()
        try:
            yield sock
        finally:
            _remove(path, own)


def bind(host: str, port: int) -> socket.socket:
    """Take the port.

    Raises:
        UsageError: somebody else has it, or the host is not one of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        holder = holder_of(str(address[0]), port) if taken else ""
        why = f"{holder} listens there" if holder else error.strerror or str(error)
        raise UsageError(
            f"can't listen on {host} port {port}: {why}",
            hint=f"another port: --port {_another(port)}; any free one: --port 0; for good: "
            f"omlx-server config set server.port {_another(port)}",
        ) from error
    return sock


def _another(port: int) -> int:
    return port + 1 if port < _LAST_PORT else port - 1


def url_of(sock: socket.socket) -> str:
    """Where it can be reached; `unix:PATH` is no URL, but our own commands take it for one."""
    if sock.family == socket.AF_UNIX:
        return f"{UNIX}{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind_unix(path: Path) -> socket.socket:
    """A socket file for this user alone. It listens at once: one that does not looks dead to the
    next server."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        _clear_the_way(path)
        before = os.umask(_NOT_FOR_OTHERS)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        sock.listen(_BACKLOG)
    except (OSError, UsageError) as error:
        sock.close()
        if isinstance(error, UsageError):
            raise
        raise _refused(path, error.strerror or str(error)) from error
    return sock


def _clear_the_way(path: Path) -> None:
    """Remove the file of a server that is gone. Raises UsageError for anything else there."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise _refused(path, "there is a file that is no socket")
        if _is_live(path):
            raise _refused(path, "another server listens there")
        path.unlink()


def _is_live(path: Path) -> bool:
    """Only a refusal says that nobody listens: a server with too much to do does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_DIALLING_SECONDS)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True


def _remove(path: Path, own: os.stat_result) -> None:
    """Unless another server has put its own there."""
    with suppress(FileNotFoundError):
        now = path.lstat()
        if (now.st_dev, now.st_ino) == (own.st_dev, own.st_ino):
            path.unlink()


def _refused(path: Path, why: str) -> UsageError:
    return UsageError(
        f"can't listen on the socket {path}: {why}",
        hint='server.uds can be another path, of at most about 100 letters, or "" for a port',
    )
