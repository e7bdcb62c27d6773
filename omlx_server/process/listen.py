"""The socket of a server, and the process that already has its address."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil

from omlx_server.errors import UsageError
from omlx_server.process.ports import next_free
from omlx_server.process.running import WILDCARDS, announcing, http_url
from omlx_server.settings.types import UNIX
from omlx_server.settings.whole_file import PRIVATE_DIRECTORY

INHERITED = "OMLX_LISTENING_FD"
"""Environment variable with the socket of a process that starts anew."""
_BACKLOG = 2048
_NOT_FOR_OTHERS = 0o177
_DIALLING_SECONDS = 1.0
_OUR_PROGRAMS = ("omlx_server", "omlx-server")


@contextmanager
def listening(
    host: str, port: int, uds: str = "", *, announced: bool = True
) -> Iterator[socket.socket]:
    """Yield the server's socket, `uds` if set, and announce it. Raises UsageError."""
    with _bound(host, port, uds) as sock, announcing(url_of(sock)) if announced else nullcontext():
        yield sock


@contextmanager
def _bound(host: str, port: int, uds: str) -> Iterator[socket.socket]:
    inherited = os.environ.get(INHERITED)
    if inherited:
        with socket.socket(fileno=os.dup(int(inherited))) as sock:
            yield sock
        return
    if not uds:
        with bind(host, port) as sock:
            yield sock
        return
    path = Path(uds).absolute()
    with _bind_unix(path) as sock:
        state = path.lstat()
        try:
            yield sock
        finally:
            with suppress(FileNotFoundError):
                if os.path.samestat(path.lstat(), state):  # else another server's
                    path.unlink()


def bind(host: str, port: int) -> socket.socket:
    """Bind a TCP socket, which does not listen yet. Raises UsageError."""
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
        is_taken = error.errno == errno.EADDRINUSE
        holder = holder_of(str(address[0]), port) if is_taken else ""
        why = f"{holder} listens there" if holder else error.strerror or str(error)
        raise UsageError(
            f"can't listen on {host} port {port}: {why}", hint=_port_hint(error, host, port)
        ) from error
    return sock


def _port_hint(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EACCES:
        return "a port that needs no special rights: --port 8000"
    if error.errno != errno.EADDRINUSE:
        return "server.host must be an address of this machine: --host 127.0.0.1"
    free = next_free(host, port)
    if free is None:
        return "any free port: --port 0"
    permanent = f"omlx-server config set server.port {free}"
    return f"another port: --port {free}; any free one: --port 0; for good: {permanent}"


def url_of(sock: socket.socket) -> str:
    """Return the http URL of a bound socket, or `unix:PATH`."""
    if sock.family == socket.AF_UNIX:
        return f"{UNIX}{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return http_url(host, port)


def _bind_unix(path: Path) -> socket.socket:
    """Bind a private Unix socket. It listens at once, or the next server would think it dead."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        _remove_dead_socket(path)
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
        raise _cannot_listen(path, error.strerror or str(error)) from error
    return sock


def _remove_dead_socket(path: Path) -> None:
    """Remove the socket file of a dead server. Raises UsageError for anything else."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise _cannot_listen(path, "there is a file that is no socket")
        if _is_live(path):
            raise _cannot_listen(path, "another server listens there")
        path.unlink()


def _is_live(path: Path) -> bool:
    """Return whether a server listens. A busy one may be slow: only a refusal says no."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_DIALLING_SECONDS)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True


def _cannot_listen(path: Path, why: str) -> UsageError:
    return UsageError(
        f"can't listen on the socket {path}: {why}",
        hint='server.uds can be another path, of at most about 100 letters, or "" for a port',
    )


def holder_of(host: str, port: int) -> str:
    """Return the process at an IP address and port, such as "nginx (process 42)", or ""."""
    for pid, connection in _all_connections():
        if pid and _listens_at(connection, host, port):
            with suppress(psutil.Error):
                return f"{_describe_process(psutil.Process(pid))} (process {pid})"
    return ""


def is_own_server(host: str, port: int) -> bool:
    """Whether only servers of this user listen at an IP address and port."""
    pids = {pid for pid, connection in _all_connections() if _listens_at(connection, host, port)}
    return bool(pids) and all(map(_is_own_server, pids))


def _is_own_server(pid: int | None) -> bool:
    with suppress(psutil.Error):
        process = psutil.Process(pid) if pid else None  # of another user, on Linux
        return process is not None and process.uids().real == os.getuid() and _is_ours(process)
    return False


def _all_connections() -> Iterator[tuple[int | None, Any]]:
    """Yield process ids and TCP connections; on macOS those of the user's own processes."""
    try:
        yield from ((connection.pid, connection) for connection in psutil.net_connections("tcp"))
    except psutil.AccessDenied:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                yield from (
                    (process.pid, connection) for connection in process.net_connections("tcp")
                )


def _listens_at(connection: Any, host: str, port: int) -> bool:
    if connection.status != psutil.CONN_LISTEN or connection.laddr.port != port:
        return False
    return host in WILDCARDS or connection.laddr.ip in (host, *WILDCARDS)


def _describe_process(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        if _is_ours(process):
            return "another omlx-server"
    return "".join(letter if letter.isprintable() else "?" for letter in process.name())


def _is_ours(process: psutil.Process) -> bool:
    return any(Path(argument).name in _OUR_PROGRAMS for argument in process.cmdline()[:5])
