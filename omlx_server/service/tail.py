"""Reads the end of a log that may be rotated meanwhile: FILE becomes FILE.1."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

_POLL_SECONDS = 0.3
# A file is at most this long before it is rotated, a little more with its last line.
_MOST_CHARS = 20_000_000


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last `count` lines, also of PATH.1. Raises FileNotFoundError."""
    lines = _lines(path)
    before = path.with_name(f"{path.name}.1")
    if len(lines) < count and before.is_file():
        lines = _lines(before) + lines
    return lines[-count:] if count else []


def follow(path: Path, pause: Callable[[float], None]) -> Iterator[str]:
    """Yield new lines without end. `pause` is called with seconds while there are none."""
    file = _open(path)
    if file is not None:
        file.seek(0, 2)
    try:
        while True:
            if file is not None:
                yield from _rest(file)
            if file is None or _was_rotated(file, path):
                if file is not None:
                    yield from _rest(file)  # lines written since the last read
                    file.close()
                file = _open(path)
                if file is not None:
                    continue  # it may have lines already
            pause(_POLL_SECONDS)
    finally:
        if file is not None:
            file.close()


def _lines(path: Path) -> list[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_MOST_CHARS).splitlines()


def _open(path: Path) -> TextIO | None:
    try:
        return path.open(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _rest(file: TextIO) -> Iterator[str]:
    while True:
        place = file.tell()
        line = file.readline()
        if not line.endswith("\n"):
            file.seek(place)
            return
        yield line.rstrip("\n")


def _was_rotated(file: TextIO, path: Path) -> bool:
    try:
        current = path.stat()
    except FileNotFoundError:
        return False  # while it is rotated, or removed
    return not os.path.samestat(current, os.fstat(file.fileno()))
