"""Where the log goes: stderr, or a file that is rotated."""

import logging
import os
import sys
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from omlx_server.errors import UsageError
from omlx_server.process.log_format import formatter

_MOST_BYTES = 10_000_000
_KEPT = 5


class _OwnFile(RotatingFileHandler):
    """Readable by its owner alone."""

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.fdopen(os.open(self.baseFilename, flags, 0o600), "a", encoding="utf-8")


def start_logging(level: str, file: str, style: str = "auto") -> None:
    """`style`: logging.format. Raises UsageError if `file` can't be written."""
    handler = log_handler(file)
    _format(handler, style)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def change_logging(level: str, style: str) -> None:
    """Another level and form from now on; the log goes where it went."""
    root = logging.getLogger()
    for handler in root.handlers:
        _format(handler, style)
    root.setLevel(level.upper())


def _format(handler: logging.Handler, style: str) -> None:
    terminal = not isinstance(handler, _OwnFile) and sys.stderr.isatty()
    coloured = not os.environ.get("NO_COLOR")
    handler.setFormatter(formatter(style, terminal=terminal, coloured=coloured))


def log_handler(file: str) -> logging.Handler:
    """To `file`, or to stderr if it is "". Raises UsageError if it can't be written."""
    if not file:
        return logging.StreamHandler(sys.stderr)
    try:
        Path(file).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _OwnFile(file, maxBytes=_MOST_BYTES, backupCount=_KEPT, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the log can't be written to {file}: {error.strerror}",
            hint='logging.file is where it goes; "" is stderr',
        ) from None
