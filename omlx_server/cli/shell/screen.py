"""Prints an answer as it comes: text on stdout, thoughts on stderr, without control characters."""

import os
import sys
from typing import Self

import typer

from omlx_server.cli.shell.output import harmless
from omlx_server.errors import OmlxError

BEGIN, END = "[thoughts]", "[end of thoughts]"


class Screen:
    def __init__(self) -> None:
        self._dims = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        self._thinks = False
        self._line_is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End the line, unless the answer failed with an OmlxError before its first text."""
        self._end_thought()
        if self._line_is_open or not isinstance(error, OmlxError):
            print(flush=True)

    def thought(self, piece: str) -> None:
        piece = harmless(piece)
        if not self._thinks:
            if self._line_is_open:
                self._line_is_open = False
                print(flush=True)
            self._thinks = True
            self._note("" if self._dims else f"{BEGIN}\n")
        # Each piece ends its own style: an answer can be stopped after any of them.
        self._note(typer.style(piece, dim=True) if self._dims else piece)

    def text(self, piece: str) -> None:
        self._end_thought()
        self._line_is_open = True
        print(harmless(piece), end="", flush=True)

    def _end_thought(self) -> None:
        if self._thinks:
            self._thinks = False
            self._note("\n\n" if self._dims else f"\n{END}\n")

    @staticmethod
    def _note(text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)
