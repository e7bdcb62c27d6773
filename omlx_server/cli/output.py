"""What a user sees when something is wrong: one line of error, one of hint, an exit code.

Exit codes: 0 done, 1 it failed, 2 it was asked for wrongly, 130 interrupted. Tracebacks are for
OMLX_DEBUG=1.
"""

import os
import sys
import traceback
from types import TracebackType

import typer

from omlx_server.errors import OmlxError, UsageError


def debugging() -> bool:
    return os.environ.get("OMLX_DEBUG") == "1"


def show_error(message: str, hint: str = "") -> None:
    _label("error", typer.colors.RED, message)
    if hint:
        _label("hint", typer.colors.CYAN, hint)


def report(error: OmlxError) -> int:
    """Show the error and return the exit code that belongs to it."""
    if debugging():
        traceback.print_exception(error)
    if isinstance(error, UsageError):
        show_error(error.message, error.hint)
        return 2
    show_error(error.message)
    return 1


def excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """A bug of ours: Python ends with code 1; only its words are ours."""
    if debugging():
        sys.__excepthook__(kind, error, trace)
        return
    show_error(
        f"unexpected {kind.__name__}: {error}",
        "this is a bug; OMLX_DEBUG=1 shows where it happened",
    )


def _label(label: str, color: str, text: str) -> None:
    coloured = None if not os.environ.get("NO_COLOR") else False
    one_line = " ".join(text.splitlines())
    typer.echo(typer.style(f"{label}: ", fg=color, bold=True) + one_line, err=True, color=coloured)
