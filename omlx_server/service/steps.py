"""What installing and removing consists of, as values: printed in a dry run, else taken in turn."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """With its parents, for this user alone. One that is there stays as it is."""

    path: Path


@dataclass(frozen=True, slots=True)
class Write:
    """Whole or not at all; what was there before is replaced."""

    path: Path
    text: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Remove:
    """A file; it may be gone already."""

    path: Path


@dataclass(frozen=True, slots=True)
class Run:
    """`may_fail`: where the state that it should lead to may be there already."""

    command: tuple[str, ...]
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class WaitUntilGone:
    """Ask again until the command fails: what it asks about is gone then."""

    command: tuple[str, ...]
    seconds: int


Step = MakeDirectory | Write | Remove | Run | WaitUntilGone


def told(steps: Iterable[Step]) -> Iterator[str]:
    """The steps in words, as the lines of a list."""
    for step in steps:
        match step:
            case MakeDirectory(path):
                yield f"- make the directory {path}"
            case Write(path, text, _):
                yield f"- write {path}:"
                yield from (f"    {line}".rstrip() for line in text.splitlines())
            case Remove(path):
                yield f"- remove {path}"
            case Run(command):
                yield f"- run {shlex.join(command)}"
            case WaitUntilGone(command, seconds):
                yield f"- wait up to {seconds} s until this fails: {shlex.join(command)}"
