"""Whether the port is free, or ours."""

import errno
import socket

from omlx_server.doctor.finding import Finding, fail, ok


def try_port(host: str, port: int) -> str:
    """Why nobody can listen there now; empty if one can. Listens itself for a moment."""
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


def port(host: str, number: int, problem: str, served: str | None) -> Finding:
    """`served`: the version of our own server there, if it is ours."""
    where = f"{host} port {number}"
    if not problem:
        return ok("port", f"{where} is free")
    if served is not None:
        return ok("port", f"omlx-server {served} serves on {where}")
    fix = "another port: omlx-server config set server.port 8001"
    return fail("port", f"{where} can't be used: {problem}", fix)
