"""A real terminal for a program: a pty, and an emulator that shows what a person would see."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte

REPO = Path(__file__).parents[2]
PATIENCE = 60.0
ENTER, CTRL_C, CTRL_D, CTRL_J, UP, TAB = "\r", "\x03", "\x04", "\x0a", "\x1b[A", "\t"
ALT_ENTER = "\x1b\r"


class _Screen(pyte.HistoryScreen):
    """It answers as a terminal does when it is asked where the cursor is."""

    def __init__(self, columns: int, rows: int, terminal: int) -> None:
        super().__init__(columns, rows, history=10_000)
        self._terminal = terminal

    def write_process_input(self, data: str) -> None:
        os.write(self._terminal, data.encode())


class PseudoTerminal:
    """`raw` is all that was written to it."""

    def __init__(self, terminal: int, process: subprocess.Popen[bytes], size: tuple[int, int]):
        self.raw = b""
        self._terminal = terminal
        self._process = process
        self._screen = _Screen(*size, terminal)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def lines(self) -> list[str]:
        """What a person sees, with what has scrolled away, without the blanks at the right."""
        columns = range(self._screen.columns)
        above = [
            "".join(line[x].data for x in columns).rstrip() for line in self._screen.history.top
        ]
        return above + [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip("\n")

    def style(self, words: str) -> pyte.screens.Char:
        """The first character of the words on the visible screen, with its style."""
        for y, line in enumerate(self._screen.display):
            if (x := line.find(words)) >= 0:
                return self._screen.buffer[y][x]
        raise AssertionError(f"{words!r} is not on the screen:\n{self.text}")

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def paste(self, text: str) -> None:
        self.type(f"\x1b[200~{text}\x1b[201~")

    def shows(self, words: str, times: int = 1) -> str:
        """Wait until the words are seen so often; return all that is seen."""
        return self._wait_for(words, lambda text: text.count(words) >= times)

    def ends_with(self, words: str) -> str:
        """Wait until these are the last words that are seen; return all that is seen."""
        return self._wait_for(words, lambda text: text.rstrip().endswith(words))

    def _wait_for(self, words: str, is_there: Callable[[str], bool]) -> str:
        end = time.monotonic() + PATIENCE
        while not is_there(self.text):
            assert time.monotonic() < end, f"{words!r} did not come:\n{self.text}"
            if not self._take(0.5) and self._process.poll() is not None:
                raise AssertionError(f"it ended without {words!r}:\n{self.text}")
        return self.text

    def ends(self) -> int:
        """Wait until the program ends; return its exit code."""
        while self._take(PATIENCE):
            pass
        return self._process.wait(PATIENCE)

    def _take(self, seconds: float) -> bool:
        if not select.select([self._terminal], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # on Linux that is how a terminal ends
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)


@contextmanager
def at_terminal(
    *words: str, columns: int = 80, rows: int = 24, **environ: str
) -> Iterator[PseudoTerminal]:
    """`omlx-server WORDS` on a terminal of its own, with job control's Ctrl-C."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "omlx_server", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**env, "PYTHONPATH": str(REPO), "TERM": "xterm-256color"} | environ,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    try:
        yield PseudoTerminal(ours, process, (columns, rows))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)
