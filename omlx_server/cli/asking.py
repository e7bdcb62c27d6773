"""Small questions to a running server, with the standard library alone: `status` must be quick."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

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
    """One server. `url` has no /v1 at its end."""

    url: str
    key: str = ""

    def get(self, path: str) -> Reply:
        """Raises NoAnswer."""
        connection = self._connection()
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            connection.request("GET", urlsplit(self.url).path.rstrip("/") + path, headers=headers)
            response = connection.getresponse()
            return Reply(response.status, response.read(_MOST_BYTES))
        except (OSError, HTTPException) as error:
            raise NoAnswer(f"no server answers at {self.url}") from error
        finally:
            connection.close()

    def models(self) -> list[str]:
        """The names that it serves; empty when it does not say."""
        listed = self.get("/v1/models").json()
        rows = listed.get("data") if isinstance(listed, Mapping) else None
        return [str(row["id"]) for row in rows or () if isinstance(row, Mapping) and "id" in row]

    def _connection(self) -> HTTPConnection:
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=_SECONDS)


def asked(url: str, key: str) -> Asked:
    """Raises UsageError for what is no URL."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.port != 0 and bool(parts.hostname)
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(f"{url} is not a URL", hint="for example http://127.0.0.1:8000")
    return Asked(url.rstrip("/").removesuffix("/v1"), key)
