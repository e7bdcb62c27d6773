"""The server's log: stderr or a rotated file, as text for people or JSON for machines."""

import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson

from omlx_server.api.http.exchange import exchange_id_of
from omlx_server.errors import UsageError

_MOST_BYTES = 10_000_000
_OLD_FILES = 5
_COLORS: Mapping[int, str] = MappingProxyType(
    {logging.DEBUG: "2", logging.INFO: "36", logging.WARNING: "33"}
)
_RED = "31"
# They log the URL of each request, whose query may be a secret signature.
_LOGGERS_OF_URLS = ("uvicorn", "httpx", "httpcore", "httpx2", "httpcore2")


class _OwnerLogFile(RotatingFileHandler):
    """A rotated log file that only its owner can read (mode 0600)."""

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.fdopen(os.open(self.baseFilename, flags, 0o600), "a", encoding="utf-8")


def start_logging(level: str, file: str, style: str = "auto") -> None:
    """Log to `file`, or to stderr if "". Raises UsageError if `file` can't be written."""
    handler = log_handler(file)
    _set_format(handler, style)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for name in _LOGGERS_OF_URLS:
        logging.getLogger(name).setLevel(logging.WARNING)


def change_logging(level: str, style: str) -> None:
    root = logging.getLogger()
    for handler in root.handlers:
        _set_format(handler, style)
    root.setLevel(level.upper())


def _set_format(handler: logging.Handler, style: str) -> None:
    terminal = not isinstance(handler, _OwnerLogFile) and sys.stderr.isatty()
    coloured = not os.environ.get("NO_COLOR")
    handler.setFormatter(formatter(style, terminal=terminal, coloured=coloured))


def log_handler(file: str) -> logging.Handler:
    """Return a handler for `file`, or for stderr if "". Raises UsageError."""
    if not file:
        return logging.StreamHandler(sys.stderr)
    try:
        Path(file).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _OwnerLogFile(file, maxBytes=_MOST_BYTES, backupCount=_OLD_FILES, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the log can't be written to {file}: {error.strerror}",
            hint='logging.file is where it goes; "" is stderr',
        ) from None


def formatter(style: str, *, terminal: bool, coloured: bool) -> logging.Formatter:
    """Return a formatter; auto is rich on a terminal and json elsewhere."""
    if style == "json" or (style == "auto" and not terminal):
        return JsonLogFormatter()
    return ForPeople(coloured=terminal and coloured)


class ForPeople(logging.Formatter):
    """A text line: time, level, logger, request id in brackets, message."""

    def __init__(self, *, coloured: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._coloured = coloured

    def formatMessage(self, record: logging.LogRecord) -> str:
        copy = logging.makeLogRecord(record.__dict__)
        name = exchange_id_of(record)
        if name:
            copy.message = f"[{name}] {record.message}"
        if self._coloured:
            color = _COLORS.get(record.levelno, _RED)
            copy.levelname = f"\x1b[{color}m{record.levelname:<7}\x1b[0m"
        return super().formatMessage(copy)


class JsonLogFormatter(logging.Formatter):
    """A JSON object a line, with the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if name := exchange_id_of(record):
            line["request_id"] = name
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        line |= getattr(record, "fields", {})
        return orjson.dumps(line, default=str).decode()
