"""Shows progress on stderr: bars on a terminal, else lines. `close` may be called twice."""

import sys
from collections.abc import Iterable
from contextlib import closing
from typing import TextIO

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TaskProgressColumn
from rich.progress import TimeRemainingColumn as Remaining
from rich.table import Column, Table
from rich.text import Text

_IN_BYTES = ("download", "download again", "verify")
# The columns of a terminal from which on there is room for the bar, bytes, speed, time left.
_BAR_FROM, _BYTES_FROM, _SPEED_FROM, _LEFT_FROM = 60, 50, 36, 28
_LONGEST_STAGE = 14


class _Stage(ProgressColumn):
    def render(self, task: Task) -> Text:
        text = Text(task.description)
        text.truncate(_LONGEST_STAGE, overflow="ellipsis")
        return text


class _Bytes(ProgressColumn):
    def render(self, task: Task) -> Text:
        if task.description not in _IN_BYTES or not task.total:
            return Text("")
        done, total = decimal(int(task.completed)), decimal(int(task.total))
        number, _, unit = done.partition(" ")
        return Text(f"{number if total.endswith(f' {unit}') else done} of {total}")


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if task.description not in _IN_BYTES or not speed:
            return Text("")
        return Text(f"{decimal(int(speed))}/s")


class _Fitting(Progress):
    """A Progress without the columns for which the terminal has no room."""

    def __init__(self, console: Console) -> None:
        self._console = console
        super().__init__(console=console)

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        width = self._console.width
        no_wrap = Column(no_wrap=True)
        columns: list[ProgressColumn | str] = [_Stage(no_wrap)]
        if width >= _BAR_FROM:
            columns.append(BarColumn(None, table_column=Column(ratio=1)))
        columns.append(TaskProgressColumn(table_column=no_wrap))
        if width >= _BYTES_FROM:
            columns.append(_Bytes(no_wrap))
        if width >= _SPEED_FROM:
            columns.append(_Speed(no_wrap))
        if width >= _LEFT_FROM:
            columns.append(Remaining(compact=True, table_column=no_wrap))
        self.columns = tuple(columns)
        self.expand = width >= _BAR_FROM
        return super().make_tasks_table(tasks)


class Bars:
    def __init__(self, stream: TextIO) -> None:
        self._progress = _Fitting(Console(file=stream))
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
