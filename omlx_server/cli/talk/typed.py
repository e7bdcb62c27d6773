"""Reads messages from a pipe, or from a plain terminal."""

import sys
from contextlib import suppress

from omlx_server.cli.talk.terminal.several_lines import continued, is_open, message_of

with suppress(ImportError):  # some builds of Python lack it; with it, `input` can edit lines
    import readline  # noqa: F401


def read_typed(prompt: str) -> str | None:
    """Return the next message; None at the end. Raises KeyboardInterrupt at Ctrl-C. The `prompt`,
    and dots for further lines, go to stderr where stdout is no terminal."""
    text = _read_line(prompt)
    while text is not None and is_open(text):
        next_line = _read_line("." * (len(prompt) - 1) + " " if prompt else "")
        if next_line is None:
            break
        text = continued(text) + next_line
    return None if text is None else message_of(text)


def _read_line(prompt: str) -> str | None:
    at_terminal = sys.stdout.isatty()
    try:
        if not at_terminal:
            print(prompt, end="", file=sys.stderr, flush=True)
        return input(prompt if at_terminal else "")
    except (EOFError, RuntimeError):  # RuntimeError: stdin is closed
        if prompt:
            print(file=sys.stdout if at_terminal else sys.stderr)
        return None
