"""The steps of installing, starting, stopping and removing a service, as values."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """Make the directory with mode 0700; an existing one stays as it is."""

    path: Path


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Write the file whole or not at all. Missing parents are made."""

    path: Path
    text: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the file; it may be missing."""

    path: Path


@dataclass(frozen=True, slots=True)
class RunCommand:
    """Run the command; if it `may_fail`, a non-zero exit code is ignored."""

    command: tuple[str, ...]
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class WaitUntilGone:
    """Repeat the command until it fails; after `seconds` the step fails."""

    command: tuple[str, ...]
    seconds: int


Step = MakeDirectory | WriteFile | Remove | RunCommand | WaitUntilGone


def describe(steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        match step:
            case MakeDirectory(path):
                yield f"- make the directory {path}"
            case WriteFile(path, text, _):
                yield f"- write {path}:"
                yield from (f"    {line}".rstrip() for line in text.splitlines())
            case Remove(path):
                yield f"- remove {path}"
            case RunCommand(command):
                yield f"- run {shlex.join(command)}"
            case WaitUntilGone(command, seconds):
                yield f"- wait up to {seconds} s until this fails: {shlex.join(command)}"
