"""Shows progress on stderr: bars on a terminal, else lines. `close` may be called twice."""

import sys
from collections.abc import Iterable
from contextlib import closing
from typing import TextIO

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TaskProgressColumn
from rich.progress import TimeRemainingColumn as TimeLeftColumn
from rich.table import Column, Table
from rich.text import Text

_STAGES_IN_BYTES = ("download", "download again", "verify")
# How wide a terminal must be, in characters, to show the bar, bytes, speed and time left.
_BAR_WIDTH, _BYTES_WIDTH, _SPEED_WIDTH, _TIME_LEFT_WIDTH = 60, 50, 36, 28
_MOST_STAGE_CHARACTERS = 14


class _StageColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        text = Text(task.description)
        text.truncate(_MOST_STAGE_CHARACTERS, overflow="ellipsis")
        return text


class _BytesColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        if task.description not in _STAGES_IN_BYTES or not task.total:
            return Text("")
        done, total = decimal(int(task.completed)), decimal(int(task.total))
        number, _, unit = done.partition(" ")
        if total.endswith(f" {unit}"):  # as in "1.2 of 3.4 GB"
            done = number
        return Text(f"{done} of {total}")


class _SpeedColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if task.description not in _STAGES_IN_BYTES or not speed:
            return Text("")
        return Text(f"{decimal(int(speed))}/s")


class _FittingProgress(Progress):
    """A Progress without the columns for which the terminal has no room."""

    def __init__(self, console: Console) -> None:
        self._console = console
        super().__init__(console=console)

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        width = self._console.width
        no_wrap = Column(no_wrap=True)
        columns: list[ProgressColumn | str] = [_StageColumn(no_wrap)]
        if width >= _BAR_WIDTH:
            columns.append(BarColumn(None, table_column=Column(ratio=1)))
        columns.append(TaskProgressColumn(table_column=no_wrap))
        if width >= _BYTES_WIDTH:
            columns.append(_BytesColumn(no_wrap))
        if width >= _SPEED_WIDTH:
            columns.append(_SpeedColumn(no_wrap))
        if width >= _TIME_LEFT_WIDTH:
            columns.append(TimeLeftColumn(compact=True, table_column=no_wrap))
        self.columns = tuple(columns)
        self.expand = width >= _BAR_WIDTH
        return super().make_tasks_table(tasks)


class Bars:
    """A bar for each stage."""

    def __init__(self, stream: TextIO) -> None:
        self._progress = _FittingProgress(Console(file=stream))
        self._tasks: dict[str, TaskID] = {}

    def update(self, stage: str, done: int, total: int) -> None:
        if not self._tasks:
            self._progress.start()
        if stage not in self._tasks:
            # Bytes that were here before do not count for the speed.
            self._tasks[stage] = self._progress.add_task(stage, completed=done)
        self._progress.update(self._tasks[stage], completed=done, total=total or None)

    def close(self) -> None:
        self._progress.stop()


class Lines:
    """A line at the beginning of a stage, and one at every tenth of it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._printed: tuple[str, int] | None = None  # the stage and tenth of the last line

    def update(self, stage: str, done: int, total: int) -> None:
        tenth = 10 * done // total if total > 0 else 0
        if (stage, tenth) == self._printed:
            return
        self._printed = (stage, tenth)
        percent = f": {10 * tenth} %" if total > 0 else ""
        print(f"{stage}{percent}", file=self._stream, flush=True)

    def close(self) -> None:
        pass


Display = Bars | Lines


def open_display(stream: TextIO | None = None) -> closing[Display]:
    stream = stream or sys.stderr
    return closing(Bars(stream) if stream.isatty() else Lines(stream))
