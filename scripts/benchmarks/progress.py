"""What is being done, for whoever waits: a bar on a terminal, else a plain line per step."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Steps(Protocol):
    """Told of each step: when it begins and what came of it."""

    def begin(self, step: str) -> None: ...

    def done(self, outcome: str) -> None: ...


@contextmanager
def open_steps(total: int) -> Iterator[Steps]:
    """`total` is how many steps there will be."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield Lines(total)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console) as progress:
        yield Bar(progress, total)


class Bar:
    """One bar; what came of each step stays above it."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total)
        self._step = ""

    def begin(self, step: str) -> None:
        self._step = step
        self._progress.update(self._task, description=step)

    def done(self, outcome: str) -> None:
        self._progress.console.print(f"{self._step}: {outcome}", highlight=False)
        self._progress.advance(self._task)


class Lines:
    """A line per step, for logs."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._count = 0
        self._step = ""

    def begin(self, step: str) -> None:
        self._count += 1
        self._step = step

    def done(self, outcome: str) -> None:
        line = f"[{self._count}/{self._total}] {self._step}: {outcome}"
        print(line, file=sys.stderr, flush=True)
