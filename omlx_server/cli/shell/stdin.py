"""Standard input. If it is closed (`<&-`), it counts as empty and as no terminal."""

import sys

import typer

from omlx_server.errors import UsageError

STDIN = "-"


def is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def confirm_removal(what: str) -> bool:
    """Ask whether to remove `what`. Raises UsageError if stdin is no terminal."""
    return confirm(f"Remove {what}?", "--yes removes without asking")


def confirm(question: str, hint: str, *, default: bool = False) -> bool:
    """Ask on stderr. Raises UsageError with the hint if stdin is no terminal."""
    if not is_terminal():
        raise UsageError("there is no terminal to ask on", hint=hint)
    return typer.confirm(question, default=default, err=True)


def ask_number(question: str, most: int) -> int:
    """Ask on stderr for a number from 1, the default, to `most`."""
    while True:
        number = int(typer.prompt(question, default=1, type=int, err=True))
        if 1 <= number <= most:
            return number
        typer.echo(f"Error: {number} is no number from 1 to {most}.", err=True)


def read(most_bytes: int = -1) -> bytes:
    return sys.stdin.buffer.read(most_bytes) if sys.stdin is not None else b""
