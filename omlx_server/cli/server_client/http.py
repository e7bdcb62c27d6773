"""Sends small requests to a server with the standard library alone, to be quick."""

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from omlx_server.errors import OmlxError, UsageError
from omlx_server.settings.types import UNIX, is_loopback

_MODELS = "/v1/models"
_SECONDS = 5.0
_MOST_BYTES = 1 << 24


class UnixConnection(HTTPConnection):
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
    """A client of one server. `url` has no /v1, or is `unix:PATH`. `is_own`: the server of the
    settings, reached without a proxy."""

    url: str
    key: str = ""
    admin_token: str = ""
    is_own: bool = False

    def get(self, path: str) -> HttpReply:
        """Raises NoAnswer, and UsageError for a wrong URL."""
        return self._ask("GET", path, None, _SECONDS)

    def post(self, path: str, body: object, seconds: float | None = _SECONDS) -> HttpReply:
        """Send `body` as JSON; `seconds` may pass without a byte. Raises as `get`."""
        return self._ask("POST", path, json.dumps(body).encode(), seconds)

    def _ask(self, method: str, path: str, body: bytes | None, seconds: float | None) -> HttpReply:
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
            raise no_answer(self.url) from error
        except ValueError:  # the path is not ASCII, or the host no name
            raise no_url(self.url) from None
        finally:
            connection.close()

    def _headers(self, body: bytes | None) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        if self.admin_token:
            headers["x-admin-token"] = self.admin_token
        if body is not None:
            headers["Content-Type"] = "application/json"
        return headers

    def models(self) -> list[str]:
        """Return the models' names; empty if they are not listed. Raises as `get`."""
        return list(_listings(self.get(_MODELS)))

    def model_listings(self) -> dict[str, Mapping[str, Any]]:
        """Return the models' listings by name. Raises as `get`, and OmlxError if refused."""
        reply = self.get(_MODELS)
        if reply.status == 401:
            raise no_key()
        if reply.status != 200:
            raise OmlxError(f"{self.url} does not list its models (HTTP {reply.status})")
        return _listings(reply)

    def _connection(self) -> HTTPConnection:
        if path := socket_of(self.url):
            return UnixConnection(path, _SECONDS)
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=_SECONDS)


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
        valid = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:  # the port is no number, or the address in brackets no address
        valid = False
    if not valid or not parts.hostname:
        raise no_url(url)
    return parts.hostname


def _listings(reply: HttpReply) -> dict[str, Mapping[str, Any]]:
    rows = (reply.json_object or {}).get("data")
    return {str(row["id"]): row for row in rows or () if isinstance(row, Mapping) and "id" in row}


def no_key() -> UsageError:
    return UsageError("the server wants an API key", hint="set OMLX_API_KEY to it")


def no_answer(url: str) -> NoAnswer:
    hint = "start one with `omlx-server up`, or name another with --url"
    return NoAnswer(f"no server answers at {url}", hint=hint)


def no_url(url: str) -> UsageError:
    return UsageError(f"{url} is not a URL", hint="for example http://127.0.0.1:8000")
