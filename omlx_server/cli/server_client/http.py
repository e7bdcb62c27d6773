"""Small questions to a running server, with the standard library alone: `status` must be quick."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from omlx_server.cli.server_client.unix import UnixConnection, socket_of
from omlx_server.errors import OmlxError, UsageError

_SECONDS = 5.0
_MOST_BYTES = 1 << 24


class NoAnswer(OmlxError):
    """Nothing at that address, or nothing that speaks HTTP."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes

    def json(self) -> Any:
        """None for anything that is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class Asked:
    """One server. `url` has no /v1 at its end, or is `unix:PATH`. `is_own`: that of the settings,
    so what goes to it is no business of a proxy."""

    url: str
    key: str = ""
    admin_token: str = ""
    is_own: bool = False

    def get(self, path: str) -> Reply:
        """Raises NoAnswer; UsageError for a URL that can't be asked for."""
        return self._ask("GET", path, None, _SECONDS)

    def post(self, path: str, body: object, seconds: float | None = _SECONDS) -> Reply:
        """`seconds` may pass without a word from the server; None waits for as long as it takes.

        Raises:
            NoAnswer: it did not answer, or broke off.
        """
        return self._ask("POST", path, json.dumps(body).encode(), seconds)

    def _ask(self, method: str, path: str, body: bytes | None, seconds: float | None) -> Reply:
        connection = self._connection()
        try:
            connection.connect()
            if connection.sock is not None:
                connection.sock.settimeout(seconds)
            connection.request(method, self._base() + path, body, self._headers(body))
            response = connection.getresponse()
            return Reply(response.status, response.read(_MOST_BYTES))
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
        """The names that it serves; empty when it does not say."""
        listed = self.get("/v1/models").json()
        rows = listed.get("data") if isinstance(listed, Mapping) else None
        return [str(row["id"]) for row in rows or () if isinstance(row, Mapping) and "id" in row]

    def _base(self) -> str:
        return "" if socket_of(self.url) else urlsplit(self.url).path.rstrip("/")

    def _connection(self) -> HTTPConnection:
        if path := socket_of(self.url):
            return UnixConnection(path, _SECONDS)
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=_SECONDS)


def asked(url: str, key: str) -> Asked:
    """Raises UsageError for what is no URL."""
    if socket_of(url):
        return Asked(url, key)
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.port != 0 and bool(parts.hostname)
    except ValueError:
        valid = False
    if not valid:
        raise no_url(url)
    return Asked(url.rstrip("/").removesuffix("/v1"), key)


def no_answer(url: str) -> NoAnswer:
    hint = "start one with `omlx-server up`, or name another with --url"
    return NoAnswer(f"no server answers at {url}", hint=hint)


def no_url(url: str) -> UsageError:
    return UsageError(f"{url} is not a URL", hint="for example http://127.0.0.1:8000")
