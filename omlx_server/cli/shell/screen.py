"""Prints an answer as it comes: text on stdout, thoughts on stderr, without control characters."""

import os
import sys
from typing import Self

import typer

from omlx_server.cli.shell.output import harmless
from omlx_server.errors import OmlxError

# They stand around thoughts where these can't be dimmed.
THOUGHTS_BEGIN, THOUGHTS_END = "[thoughts]", "[end of thoughts]"


class Screen:
    """Prints one answer; leaving the `with` ends its last line."""

    def __init__(self) -> None:
        self._can_dim = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        self._is_thinking = False
        self._line_is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # An answer that failed before its first text has no line to end.
        self._end_thought()
        if self._line_is_open or not isinstance(error, OmlxError):
            print(flush=True)

    def show_thought(self, piece: str) -> None:
        piece = harmless(piece)
        if not self._is_thinking:
            if self._line_is_open:
                self._line_is_open = False
                print(flush=True)
            self._is_thinking = True
            self._print_to_stderr("" if self._can_dim else f"{THOUGHTS_BEGIN}\n")
        # Each piece ends its own style: an answer can be stopped after any of them.
        self._print_to_stderr(typer.style(piece, dim=True) if self._can_dim else piece)

    def show_text(self, piece: str) -> None:
        self._end_thought()
        self._line_is_open = True
        print(harmless(piece), end="", flush=True)

    def _end_thought(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            self._print_to_stderr("\n\n" if self._can_dim else f"\n{THOUGHTS_END}\n")

    @staticmethod
    def _print_to_stderr(text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)
