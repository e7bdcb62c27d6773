"""How the program ends: at SIGTERM, with its parent, by a bug, and when its output can't be
written."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

from omlx_server.cli.shell import output

# A shell sets this variable when it asks for completions.
_COMPLETION_VARIABLE = "_OMLX_SERVER_COMPLETE"


@contextmanager
def flushing_stdout() -> Iterator[None]:
    """Flush stdout at the end; exit with code 1 if that fails. A closed stdout is no error."""
    sys.stdout, sys.stderr = map(_or_devnull, (sys.stdout, sys.stderr))
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


def _or_devnull(stream: TextIO | None) -> TextIO:
    return stream or Path(os.devnull).open("w", encoding="utf-8")


def _drop_stdout() -> None:
    """Send stdout to /dev/null: Python flushes it once more at its end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def install_excepthook(environ: Mapping[str, str] = os.environ) -> None:
    """Show a bug in our words; nothing while a shell completes a word."""
    is_completing = _COMPLETION_VARIABLE in environ
    sys.excepthook = (lambda *_: None) if is_completing else output.excepthook


@contextmanager
def on_sigterm(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with_stdin() -> None:
    """Send SIGTERM to this process when its standard input ends, as it does with the parent."""
    threading.Thread(target=_await_end, name="stdin", daemon=True).start()


def _await_end() -> None:
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
