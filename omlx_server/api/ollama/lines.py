"""Sends answers as JSON lines."""

from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from omlx_server.api.http.ollama_errors import envelope
from omlx_server.api.http.sse import EventStream


class JsonLineStream(EventStream):
    """An EventStream of JSON lines. `keepalive` is a line without news, as clients parse each
    line."""

    media_type = "application/x-ndjson"

    def __init__(
        self,
        lines: AsyncGenerator[bytes, None],
        keepalive_seconds: float,
        keepalive: Mapping[str, Any],
        late_headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        super().__init__(
            lines,
            keepalive_seconds,
            late_headers,
            on_error=lambda error: line(envelope(error)),
            keepalive=line(keepalive),
        )


def line(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value) + b"\n"


def rfc3339(seconds: float | None = None) -> str:
    """Return a time in seconds since 1970 in Ollama's form; by default now."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat().replace("+00:00", "Z")
