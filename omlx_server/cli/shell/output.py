"""Prints what commands tell, and errors: lines on stderr, or with --json an object on stdout."""

import json
import os
import re
import sys
import traceback
from collections.abc import Iterable
from io import TextIOWrapper
from types import TracebackType
from typing import TextIO

import typer

from omlx_server.errors import OmlxError

STDOUT = "-"
# C0 without tab and line feed, DEL, C1, and the controls of the writing direction.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def is_debugging() -> bool:
    return os.environ.get("OMLX_DEBUG") == "1"


def show_error(message: str, hint: str = "") -> None:
    _print_labelled("error", typer.colors.RED, message)
    if hint:
        _print_labelled("hint", typer.colors.CYAN, hint)


def escape_unencodable() -> None:
    """Let stdout escape the characters that its encoding lacks."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    print(text, file=sys.stderr)


def visible(text: str) -> str:
    """Return the text with "?" for each unprintable character."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def harmless(text: str) -> str:
    """Return the text without control characters except line ends and tabs."""
    return _CONTROLS.sub("", text)


def counted(count: int, noun: str) -> str:
    """Return "1 token", "2 tokens"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def show_json(document: object, stream: TextIO | None = None, *, indent: int | None = 2) -> None:
    """Print JSON. Without a Unicode encoding, all but ASCII is escaped."""
    out = stream or sys.stdout
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    try:
        text.encode(out.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=indent, ensure_ascii=True)
    print(text, file=out)


def show_result(document: object, lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        show_json(document)
    else:
        print("\n".join(lines))


def report_error(error: OmlxError, *, as_json: bool = False, stream: TextIO | None = None) -> int:
    """Show the error and return its exit code. JSON goes to `stream`, or else to stdout."""
    if is_debugging():
        traceback.print_exception(error)
    if as_json:
        fields = {"message": error.message, "hint": error.hint or None}
        show_json({"error": fields}, stream)
    else:
        show_error(error.message, error.hint)
    return error.exit_code


def excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Show an uncaught exception as a bug, or with OMLX_DEBUG=1 as a traceback."""
    if is_debugging():
        sys.__excepthook__(kind, error, trace)
        return
    hint = "this is a bug; OMLX_DEBUG=1 shows where it happened"
    show_error(f"unexpected {kind.__name__}: {error}", hint)


def _print_labelled(label: str, color: str, text: str) -> None:
    line = typer.style(f"{label}: ", fg=color, bold=True) + harmless(" ".join(text.splitlines()))
    # None: in colour on a terminal.
    typer.echo(line, err=True, color=False if os.environ.get("NO_COLOR") else None)
