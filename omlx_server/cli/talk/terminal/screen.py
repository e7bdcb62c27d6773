"""Shows an answer on a terminal as it comes. An open block is rendered anew with each of its
pieces."""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Self, TextIO

from rich.cells import cell_len
from rich.text import Text

from omlx_server.cli.shell.output import harmless
from omlx_server.cli.shell.screen import BEGIN
from omlx_server.cli.talk.terminal.markdown import Renderer, blocks_of

_CLEAR_BELOW = "\x1b[J"
_SIZE = (80, 24)
# Between two renderings: seconds, and multiples of the time that one takes.
_PAUSE = 0.04
_REST = 5


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


class RichScreen:
    def __init__(self) -> None:
        self._live = LiveLines(sys.stdout)
        self._renderer = Renderer()
        self._open = ""  # the text that is not final yet
        self._thought: str | None = None  # its last line, while the model thinks
        self._thinks_since = 0.0
        self._parted = False  # whether a blank line comes before the next block
        self._next_draw = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end_thought()
        self._finish_text()

    def thought(self, piece: str) -> None:
        if self._thought is None:
            self._finish_text()
            self._thought, self._thinks_since = "", time.perf_counter()
            if not self._renderer.dims:
                self._live.finish(self._after_gap([BEGIN]))
        *lines, self._thought = (self._thought + piece).split("\n")
        for line in lines:
            self._finish_thought(line)
        self._draw(partial(self._renderer.dimmed, self._thought, self._live.width))

    def text(self, piece: str) -> None:
        self._end_thought()
        self._open += harmless(piece)
        self._draw(self._open_lines)

    def _open_lines(self) -> list[str]:
        """Finish the blocks that are complete; return the lines of the open one."""
        whole_lines, _, rest = self._open.rpartition("\n")
        *final, last = blocks_of(whole_lines) or [""]
        self._open = f"{last}\n{rest}" if last else rest
        self._finish_all(final)
        return self._renderer.markdown(self._open, self._live.width)

    def _draw(self, render: Callable[[], list[str]]) -> None:
        began = time.perf_counter()
        if began < self._next_draw:
            return
        if lines := render():
            self._live.show(self._after_gap(lines))
        took = time.perf_counter() - began
        self._next_draw = began + max(_PAUSE, _REST * took)

    def _finish_text(self) -> None:
        blocks, self._open = blocks_of(self._open), ""
        self._finish_all(blocks)

    def _finish_all(self, blocks: list[str]) -> None:
        for block in blocks:
            if lines := self._renderer.markdown(block, self._live.width):
                self._live.finish(self._after_gap(lines))
                self._parted = True

    def _finish_thought(self, line: str) -> None:
        self._live.finish(self._after_gap(self._renderer.dimmed(line, self._live.width) or [""]))
        self._parted = False

    def _end_thought(self) -> None:
        if self._thought is None:
            return
        if self._thought:
            self._finish_thought(self._thought)
        took = time.perf_counter() - self._thinks_since
        self._live.finish(self._renderer.dimmed(f"[thought for {took:.1f} s]", self._live.width))
        self._thought, self._parted = None, True

    def _after_gap(self, lines: list[str]) -> list[str]:
        return ["", *lines] if self._parted else lines
