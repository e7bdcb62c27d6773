"""What a log line looks like: text for people, JSON for machines. Both carry the request's id."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import orjson

from omlx_server.api.http.exchange import name_of

_COLORS: Mapping[int, str] = MappingProxyType(
    {logging.DEBUG: "2", logging.INFO: "36", logging.WARNING: "33"}
)
_RED = "31"


def formatter(style: str, *, terminal: bool, coloured: bool) -> logging.Formatter:
    """`style` is auto, rich or json; auto is for people where they look at it."""
    if style == "json" or (style == "auto" and not terminal):
        return JsonLines()
    return ForPeople(coloured=terminal and coloured)


class ForPeople(logging.Formatter):
    """Time, level, module, the request's id in brackets, and the message."""

    def __init__(self, *, coloured: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._coloured = coloured

    def formatMessage(self, record: logging.LogRecord) -> str:
        shown = logging.makeLogRecord(record.__dict__)
        name = name_of(record)
        if name:
            shown.message = f"[{name}] {record.message}"
        if self._coloured:
            color = _COLORS.get(record.levelno, _RED)
            shown.levelname = f"\x1b[{color}m{record.levelname:<7}\x1b[0m"
        return super().formatMessage(shown)


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message; request_id, exception and the record's own
    `fields` where there are any."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if name := name_of(record):
            line["request_id"] = name
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        line |= getattr(record, "fields", {})
        return orjson.dumps(line, default=str).decode()
