"""How the program ends: at SIGTERM, by a bug, and when its output can't be written."""

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

from omlx_server.cli.shell import output

# The variable by which a shell asks for completions.
_COMPLETING = "_OMLX_SERVER_COMPLETE"


@contextmanager
def orderly() -> Iterator[None]:
    """Flush stdout at the end; if writing fails, exit with code 1. Text for a closed stdout or
    stderr (`>&-`) is lost without an error."""
    sys.stdout, sys.stderr = (_open(stream) for stream in (sys.stdout, sys.stderr))
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        _drop_stdout()
        if error.errno != errno.EPIPE:
            output.show_error(f"the output can't be written: {error.strerror}")
        raise SystemExit(1) from None


def _open(stream: TextIO | None) -> TextIO:
    return stream or Path(os.devnull).open("w", encoding="utf-8")


def _drop_stdout() -> None:
    """Send stdout to /dev/null: Python flushes it once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def install_excepthook(environ: Mapping[str, str] = os.environ) -> None:
    """Show a bug in our words; nothing while a shell completes a word."""
    silent = _COMPLETING in environ
    sys.excepthook = (lambda *_: None) if silent else output.excepthook


@contextmanager
def sigterm(act: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, act)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
