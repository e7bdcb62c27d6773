"""Shows the progress of work on files on stderr: a bar on a terminal, else a line now and then.

Both classes are a `models.progress.Progress`. They draw nothing before the first update. `close`
may be called more than once: when the server is ready, and again when the command ends.
"""

import sys
from contextlib import closing
from typing import TextIO

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
)
from rich.progress import TimeRemainingColumn as Remaining
from rich.text import Text

_IN_BYTES = ("download", "download again", "verify")


class _Bytes(ProgressColumn):
    """A column for stages that count bytes: how many of how many, and how many a second."""

    def render(self, task: Task) -> Text:
        if task.description not in _IN_BYTES or not task.total:
            return Text("")
        speed = task.finished_speed or task.speed
        words = f"{decimal(int(task.completed))} of {decimal(int(task.total))}"
        return Text(f"{words}, {decimal(int(speed))}/s" if speed else words)


class Bars:
    """Progress as bars on a terminal, one per stage."""

    def __init__(self, stream: TextIO) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            _Bytes(),
            Remaining(),
            console=Console(file=stream),
        )
        self._tasks: dict[str, TaskID] = {}

    def update(self, stage: str, done: int, total: int) -> None:
        if not self._tasks:
            self._progress.start()
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage)
        self._progress.update(self._tasks[stage], completed=done, total=total or None)

    def close(self) -> None:
        self._progress.stop()


class Lines:
    """Progress as lines: one when a stage begins, and one at every tenth of it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last: tuple[str, int] | None = None

    def update(self, stage: str, done: int, total: int) -> None:
        tenth = 10 * done // total if total > 0 else 0
        if (stage, tenth) == self._last:
            return
        self._last = (stage, tenth)
        percent = f": {10 * tenth} %" if total > 0 else ""
        print(f"{stage}{percent}", file=self._stream, flush=True)

    def close(self) -> None:
        pass


Display = Bars | Lines


def open_display(stream: TextIO | None = None) -> closing[Display]:
    stream = stream or sys.stderr
    return closing(Bars(stream) if stream.isatty() else Lines(stream))
