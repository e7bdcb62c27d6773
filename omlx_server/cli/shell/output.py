"""What a user sees when something is wrong, and which exit code belongs to it.

One line of error and one of hint, on stderr; with --json one object on stdout instead:
{"error": {"message": "...", "hint": "..."}}, where `hint` is null if there is none.

Exit codes: 0 done, 1 it failed, 2 it was asked for wrongly, 130 interrupted. Tracebacks are for
OMLX_DEBUG=1.
"""

import json
import os
import sys
import traceback
from types import TracebackType
from typing import TextIO

import typer

from omlx_server.errors import OmlxError


def debugging() -> bool:
    return os.environ.get("OMLX_DEBUG") == "1"


def show_error(message: str, hint: str = "") -> None:
    _label("error", typer.colors.RED, message)
    if hint:
        _label("hint", typer.colors.CYAN, hint)


def show(text: str, *, flush: bool = False) -> None:
    """On stdout. What the terminal can't write, or what is no text at all, is escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding, sys.stdout.errors or "strict")
    except UnicodeEncodeError:
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    print(text, flush=flush)


def show_json(document: object, stream: TextIO | None = None, *, indent: int | None = 2) -> None:
    """On stdout, unless that is wanted for something else. What the terminal can't write, or what
    is no text at all in a name of a file, is escaped."""
    out = stream or sys.stdout
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    try:
        text.encode(out.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=indent)
    print(text, file=out)


def report(error: OmlxError, *, as_json: bool = False, stream: TextIO | None = None) -> int:
    """Show the error and return the exit code that belongs to it. `stream`: where JSON goes."""
    if debugging():
        traceback.print_exception(error)
    if as_json:
        said = {"message": error.message, "hint": error.hint or None}
        show_json({"error": said}, stream)
    else:
        show_error(error.message, error.hint)
    return error.exit_code


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
