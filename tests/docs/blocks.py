"""The blocks of code in the pages. A block without a language is a shell's, so that no command
escapes by its form."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"(?ms)^ *(`{3,}).*?^ *\1\s*$")
"""A fenced block, with its fences."""
_FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,})(?P<info>.*)")
_ITEM = re.compile(r" *(?:[-*+]|\d+\.) ")
_BESIDE = "    "
"""What makes a line code, outside of lists."""


@dataclass(frozen=True, slots=True)
class Block:
    """`info` is what stands behind the fence; `language` its first word."""

    page: str
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.split()[0] if self.info else "sh"

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """The README first."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def all_blocks() -> list[Block]:
    found: list[Block] = []
    for page in pages():
        found += blocks_of(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())
    return found


def blocks_of(text: str, page: str) -> Iterator[Block]:
    """In the order of the page."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.fullmatch(lines[at])
        if fence:
            end = _end(lines, at, fence["ticks"])
            body = dedent("\n".join(lines[at + 1 : end]))
            yield Block(page, at + 1, fence["info"].strip(), body)
            at = end + 1
            continue
        end = _end_of_indented(lines, at)
        if end > at:
            yield Block(page, at + 1, "", dedent("\n".join(lines[at:end])))
        at = max(end, at + 1)


def _end(lines: list[str], start: int, ticks: str) -> int:
    for at in range(start + 1, len(lines)):
        if lines[at].strip() == ticks:
            return at
    raise AssertionError(f"line {start + 1}: this block has no end")


def _end_of_indented(lines: list[str], start: int) -> int:
    """`start` where no block begins."""
    if not lines[start].startswith(_BESIDE) or (start and lines[start - 1].strip()):
        return start
    before = [line for line in lines[:start] if line.strip() and not line.startswith(" ")]
    if before and _ITEM.match(before[-1]):
        return start
    at = start
    while at < len(lines) and (lines[at].startswith(_BESIDE) or not lines[at].strip()):
        at += 1
    return at
