"""Lines at the end of a terminal that can be written again until they are final."""

import os
from typing import TextIO

from rich.cells import cell_len
from rich.text import Text

_CLEAR_BELOW = "\x1b[J"
_SIZE = (80, 24)


class LiveLines:
    """Writes lines on `out`, a terminal. Only open lines that fit are written: those that have
    scrolled away can't be written again."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown: list[str] = []

    @property
    def width(self) -> int:
        """The columns of a line, but one: some terminals wrap as soon as the last is filled."""
        return max(1, self._size()[0] - 1)

    def show(self, lines: list[str]) -> None:
        self._write(lines[-max(1, self._size()[1] - 1) :])

    def finish(self, lines: list[str]) -> None:
        """Replace the open lines by final ones."""
        self._write(lines)
        self._shown = []
        self._out.write("\n")
        self._out.flush()

    def _write(self, lines: list[str]) -> None:
        same = _alike(self._shown, lines)
        if len(lines) == same < len(self._shown):
            same = max(0, same - 1)  # the cursor belongs at the end of the last line
        old, new = self._shown[same:], lines[same:]
        if old:
            above = sum(map(self._rows, old)) - 1
            self._out.write(f"\x1b[{above}A" if above else "")
            self._out.write(f"\r{_CLEAR_BELOW}")
        elif self._shown and new:
            self._out.write("\n")
        self._out.write("\n".join(new))
        self._out.flush()
        self._shown = lines

    def _rows(self, line: str) -> int:
        """The terminal may have become narrower."""
        cells = cell_len(Text.from_ansi(line).plain)
        return max(1, -(-cells // self._size()[0]))

    def _size(self) -> tuple[int, int]:
        try:
            columns, rows = os.get_terminal_size(self._out.fileno())
        except OSError:
            return _SIZE
        return columns or _SIZE[0], rows or _SIZE[1]


def _alike(old: list[str], new: list[str]) -> int:
    pairs = enumerate(zip(old, new, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(old), len(new)))
