"""How the program ends when whoever reads what it prints is gone, or when its output can't be
written: quietly, or with one line."""

import errno
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from omlx_server.cli.shell import output

# The variable by which a shell asks for completions.
_COMPLETING = "_OMLX_SERVER_COMPLETE"


@contextmanager
def orderly() -> Iterator[None]:
    """What is left in the buffer is written inside, where a failure can still be told."""
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


def _drop_stdout() -> None:
    """Python flushes once more at its end, and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def install_excepthook(environ: Mapping[str, str] = os.environ) -> None:
    """A shell that completes a word must not get errors between the user's words."""
    sys.excepthook = _say_nothing if _COMPLETING in environ else output.excepthook


def _say_nothing(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    pass
