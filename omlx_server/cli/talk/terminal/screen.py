"""Shows an answer on a terminal as it comes. An open block is rendered anew with each of its
pieces."""

import sys
import time
from collections.abc import Callable
from typing import Self

from omlx_server.cli.shell.screen import BEGIN
from omlx_server.cli.talk.terminal.blocks import Blocks
from omlx_server.cli.talk.terminal.live import LiveLines
from omlx_server.cli.talk.terminal.markdown import Renderer

# Between two renderings: seconds, and multiples of the time that one takes.
_PAUSE = 0.04
_REST = 5


class RichScreen:
    def __init__(self) -> None:
        self._live = LiveLines(sys.stdout)
        self._renderer = Renderer()
        self._blocks = Blocks()
        self._thought: str | None = None  # its last line, while the model thinks
        self._thinks_since = 0.0
        self._parted = False  # whether a blank line comes before the next block
        self._next_draw = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end_thought()
        self._finish_all(self._blocks.close())

    def thought(self, piece: str) -> None:
        if self._thought is None:
            self._finish_all(self._blocks.close())
            self._thought, self._thinks_since = "", time.perf_counter()
            if not self._renderer.dims:
                self._live.finish(self._after_gap([BEGIN]))
        *lines, self._thought = (self._thought + piece).split("\n")
        for line in lines:
            self._finish_thought(line)
        self._draw(self._renderer.dimmed, self._thought)

    def text(self, piece: str) -> None:
        self._end_thought()
        self._finish_all(self._blocks.add(piece))
        self._draw(self._renderer.markdown, self._blocks.open)

    def _draw(self, render: Callable[[str, int], list[str]], text: str) -> None:
        began = time.perf_counter()
        if began < self._next_draw or not text.strip():
            return
        self._live.show(self._after_gap(render(text, self._live.width)))
        took = time.perf_counter() - began
        self._next_draw = began + max(_PAUSE, _REST * took)

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
