"""Shows an answer on a terminal as it comes. Each piece renders the open block anew."""

import math
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Self, TextIO

from rich.cells import cell_len
from rich.text import Text

from omlx_server.cli.shell.output import harmless
from omlx_server.cli.shell.screen import THOUGHTS_BEGIN
from omlx_server.cli.talk.terminal.markdown import Renderer, blocks_of

_CLEAR_BELOW = "\x1b[J"
_USUAL_SIZE = (80, 24)  # columns, rows
# From the beginning of a rendering to the next; more if one takes long.
_LEAST_SECONDS = 0.04
_LEAST_RENDERING_TIMES = 5


class LiveLines:
    """Writes lines on a terminal. Of open lines only those that fit, as only they can change."""

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
        """Write the lines from the first on that differs from what is shown."""
        kept = _count_equal(self._shown, lines)
        if len(lines) == kept < len(self._shown):
            kept = max(0, kept - 1)  # the last one anew: the cursor belongs at its end
        old_lines, new_lines = self._shown[kept:], lines[kept:]
        if old_lines:
            rows_above_cursor = sum(map(self._rows_of, old_lines)) - 1
            self._out.write(f"\x1b[{rows_above_cursor}A" if rows_above_cursor else "")
            self._out.write(f"\r{_CLEAR_BELOW}")
        elif self._shown and new_lines:
            self._out.write("\n")
        self._out.write("\n".join(new_lines))
        self._out.flush()
        self._shown = lines

    def _rows_of(self, line: str) -> int:
        # More than one if the terminal has become narrower.
        cells = cell_len(Text.from_ansi(line).plain)
        return max(1, math.ceil(cells / self._size()[0]))

    def _size(self) -> tuple[int, int]:
        try:
            columns, rows = os.get_terminal_size(self._out.fileno())
        except OSError:
            return _USUAL_SIZE
        return columns or _USUAL_SIZE[0], rows or _USUAL_SIZE[1]


def _count_equal(old_lines: list[str], new_lines: list[str]) -> int:
    """Return how many lines are the same, from the first on."""
    for index, (old, new) in enumerate(zip(old_lines, new_lines, strict=False)):
        if old != new:
            return index
    return min(len(old_lines), len(new_lines))


class RichScreen:
    """Shows one answer: Markdown, and dimmed thoughts with the time that they took."""

    def __init__(self) -> None:
        self._live = LiveLines(sys.stdout)
        self._renderer = Renderer()
        self._open_text = ""  # what is not final yet
        self._thought_line: str | None = None  # the last line of a thought, while it lasts
        self._thought_began = 0.0
        self._needs_gap = False  # a blank line before the next block
        self._next_draw = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end_thought()
        self._finish_text()

    def show_thought(self, piece: str) -> None:
        if self._thought_line is None:
            self._finish_text()
            self._thought_line, self._thought_began = "", time.perf_counter()
            if not self._renderer.can_dim:
                self._live.finish(self._after_gap([THOUGHTS_BEGIN]))
        *lines, self._thought_line = (self._thought_line + piece).split("\n")
        for line in lines:
            self._finish_thought(line)
        self._draw(partial(self._renderer.dimmed, self._thought_line, self._live.width))

    def show_text(self, piece: str) -> None:
        self._end_thought()
        self._open_text += harmless(piece)
        self._draw(self._open_lines)

    def _open_lines(self) -> list[str]:
        """Finish the blocks that are complete; return the lines of the open one."""
        complete_lines, _, last_line = self._open_text.rpartition("\n")
        *complete_blocks, open_block = blocks_of(complete_lines) or [""]
        self._open_text = f"{open_block}\n{last_line}" if open_block else last_line
        self._finish_blocks(complete_blocks)
        return self._renderer.markdown(self._open_text, self._live.width)

    def _draw(self, render: Callable[[], list[str]]) -> None:
        began = time.perf_counter()
        if began < self._next_draw:
            return
        if lines := render():
            self._live.show(self._after_gap(lines))
        rendering_seconds = time.perf_counter() - began
        self._next_draw = began + max(_LEAST_SECONDS, _LEAST_RENDERING_TIMES * rendering_seconds)

    def _finish_text(self) -> None:
        blocks, self._open_text = blocks_of(self._open_text), ""
        self._finish_blocks(blocks)

    def _finish_blocks(self, blocks: list[str]) -> None:
        for block in blocks:
            if lines := self._renderer.markdown(block, self._live.width):
                self._live.finish(self._after_gap(lines))
                self._needs_gap = True

    def _finish_thought(self, line: str) -> None:
        self._live.finish(self._after_gap(self._renderer.dimmed(line, self._live.width) or [""]))
        self._needs_gap = False

    def _end_thought(self) -> None:
        if self._thought_line is None:
            return
        if self._thought_line:
            self._finish_thought(self._thought_line)
        seconds = time.perf_counter() - self._thought_began
        line = self._renderer.dimmed(f"[thought for {seconds:.1f} s]", self._live.width)
        self._live.finish(line)
        self._thought_line, self._needs_gap = None, True

    def _after_gap(self, lines: list[str]) -> list[str]:
        return ["", *lines] if self._needs_gap else lines
