"""Sends small requests to a server with the standard library alone, to be quick."""

import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import structs

from omlx_server.cli.server_client.trust import say_untrusted, trusted_url
from omlx_server.cli.shell.options import load_settings
from omlx_server.errors import OmlxError, UsageError
from omlx_server.process.running import announced_urls, http_url, moved_ports
from omlx_server.settings import Settings
from omlx_server.settings.admin_token import read_admin_token
from omlx_server.settings.layers import TOKEN_VARIABLE
from omlx_server.settings.types import UNIX, is_loopback

_MODELS_ROUTE = "/v1/models"
_TIMEOUT = 5.0  # seconds
_MOST_BYTES = 1 << 24
# Printable ASCII without a blank at its ends.
_API_KEY = re.compile(r"[!-~]([ -~]*[!-~])?")


class UnixConnection(HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class NoAnswer(OmlxError):
    """No server answers, it does not speak HTTP, or the connection broke."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """The status and body of an answer."""

    status: int
    body: bytes

    @property
    def json_object(self) -> Mapping[str, Any] | None:
        """The body as a JSON object; None if it is anything else."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, Mapping) else None

    def text(self, name: str) -> str | None:
        """Return the field `name` of that object if it is a text."""
        text = (self.json_object or {}).get(name)
        return text if isinstance(text, str) else None

    @property
    def error(self) -> Mapping[str, Any]:
        error = (self.json_object or {}).get("error")
        return error if isinstance(error, Mapping) else {}


@dataclass(frozen=True, slots=True)
class ServerClient:
    """A client of one server. `url` has no /v1, or is `unix:PATH`. `is_own`: use no proxy."""

    url: str
    key: str = ""
    admin_token: str = ""
    is_own: bool = False

    def get(self, path: str) -> HttpReply:
        """Send a GET. Raises NoAnswer, and UsageError for a wrong URL."""
        return self._send("GET", path, None, _TIMEOUT)

    def post(self, path: str, body: object, seconds: float | None = _TIMEOUT) -> HttpReply:
        """Send `body` as JSON; `seconds` may pass without a byte. Raises as `get`."""
        return self._send("POST", path, json.dumps(body).encode(), seconds)

    def _send(self, method: str, path: str, body: bytes | None, seconds: float | None) -> HttpReply:
        connection = self._connection()
        try:
            connection.connect()
            if connection.sock is not None:
                connection.sock.settimeout(seconds)
            base = "" if socket_of(self.url) else urlsplit(self.url).path.rstrip("/")
            connection.request(method, base + path, body, self._headers(body))
            response = connection.getresponse()
            return HttpReply(response.status, response.read(_MOST_BYTES))
        except (OSError, HTTPException) as error:
            raise no_answer_error(self.url) from error
        except ValueError:  # the path is not ASCII, or the host no name
            raise wrong_url_error(self.url) from None
        finally:
            connection.close()

    def _headers(self, body: bytes | None) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        if self.admin_token:
            headers["x-admin-token"] = self.admin_token
        if body is not None:
            headers["Content-Type"] = "application/json"
        return headers

    def is_listening(self) -> bool:
        with suppress(OSError, ValueError), closing(self._connection()) as connection:
            connection.connect()
            return True
        return False

    def models(self) -> list[str]:
        """Return the models' names; empty if the server refuses. Raises as `get`."""
        return list(_listings(self.get(_MODELS_ROUTE)))

    def model_listings(self) -> dict[str, Mapping[str, Any]]:
        """Return the models' listings by name. Raises as `get`, and OmlxError if it refuses."""
        reply = self.get(_MODELS_ROUTE)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            raise missing_key_error()
        if reply.status != HTTPStatus.OK:
            raise OmlxError(f"{self.url} does not list its models (HTTP {reply.status})")
        return _listings(reply)

    def _connection(self) -> HTTPConnection:
        if path := socket_of(self.url):
            return UnixConnection(path, _TIMEOUT)
        parts = urlsplit(self.url)
        connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return connect(parts.hostname or "", parts.port, timeout=_TIMEOUT)


def socket_of(url: str) -> str:
    """Return the path in an address `unix:PATH`; empty for a URL."""
    return url.removeprefix(UNIX) if url.startswith(UNIX) else ""


def server_at(url: str, key: str) -> ServerClient:
    """Return the server at `url`, with or without /v1. Raises UsageError if that is no URL."""
    if socket_of(url):
        return ServerClient(url, key)
    _host_of(url)
    return ServerClient(url.rstrip("/").removesuffix("/v1"), key)


def is_local(url: str) -> bool:
    """Whether `url` leads to this machine. Raises UsageError if it is no URL."""
    return bool(socket_of(url)) or is_loopback(_host_of(url))


def _host_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:  # the port is no number, or the address in brackets no address
        is_valid = False
    if not is_valid or not parts.hostname:
        raise wrong_url_error(url)
    return parts.hostname


def _listings(reply: HttpReply) -> dict[str, Mapping[str, Any]]:
    rows = (reply.json_object or {}).get("data")
    return {str(row["id"]): row for row in rows or () if isinstance(row, Mapping) and "id" in row}


def missing_key_error() -> UsageError:
    return UsageError("the server wants an API key", hint="set OMLX_API_KEY to it")


def no_answer_error(url: str) -> NoAnswer:
    others = announced_urls()
    hint = "start one with `omlx-server up`, or name another with --url"
    if others:
        hint = f"yours runs at {others[0]}: name it with --url"
    return NoAnswer(f"no server answers at {url}", hint=hint)


def wrong_url_error(url: str) -> UsageError:
    return UsageError(f"{url} is not a URL", hint="for example http://127.0.0.1:8000")


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
    return running_server(load_settings(config, sets).settings, api_key)


def running_server(settings: Settings, api_key: str = "") -> ServerClient:
    """Return `own_server`, or the server that `up` started beside another program's."""
    usual = own_server(settings, api_key)
    ports = [] if settings.server.uds else moved_ports(settings.server.port)
    if not ports or is_omlx_server(usual.url):
        return usual
    return own_server(with_port(settings, ports[0]), api_key)


def with_port(settings: Settings, port: int) -> Settings:
    return structs.replace(settings, server=structs.replace(settings.server, port=port))


def is_omlx_server(url: str) -> bool:
    """Whether an omlx-server answers there; it is given no key."""
    try:
        return "status" in (ServerClient(url, is_own=True).get("/health/ready").json_object or {})
    except NoAnswer:
        return False


def own_server(settings: Settings, api_key: str = "") -> ServerClient:
    """Return the server of these settings, with `api_key` or else, if this user runs it, their
    first key. Raises UsageError."""
    server = replace(server_at(local_url(settings), api_key), is_own=True)
    stored = stored_key(settings)
    return server if api_key or not stored else _if_trusted(server, key=stored)


def stored_key(settings: Settings) -> str:
    return next((key.reveal() for key in settings.auth.api_keys), "")


def with_admin_token(server: ServerClient) -> ServerClient:
    """Add the token of the environment, or the stored one if this user runs the server. Raises
    ConfigError."""
    token = read_admin_token()
    if not token or TOKEN_VARIABLE in os.environ:
        return replace(server, admin_token=token)
    return _if_trusted(server, token=token)


def _if_trusted(server: ServerClient, *, key: str = "", token: str = "") -> ServerClient:
    """Add what is stored if this user runs the server; else say why not, if somebody listens."""
    if url := trusted_url(server.url):
        return replace(server, url=url, key=server.key or key, admin_token=token)
    if server.is_listening():
        say_untrusted(server.url)
    return server


def local_url(settings: Settings) -> str:
    """Return the URL, or `unix:PATH`, on this machine. Raises UsageError if server.port is 0."""
    if settings.server.uds:
        return f"{UNIX}{Path(settings.server.uds).absolute()}"
    if settings.server.port == 0:
        raise UsageError("server.port is 0, so its real port is unknown", hint="give --url")
    return http_url(settings.server.host, settings.server.port)
