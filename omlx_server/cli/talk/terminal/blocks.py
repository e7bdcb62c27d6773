"""Splits Markdown that comes in pieces into top-level blocks."""

import re

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})(.*)")
_HEADING = re.compile(r"#{1,6}(\s|$)")
_ITEM = re.compile(r"([-*+]|\d{1,9}[.)])\s")


class Blocks:
    """Collects the pieces of a text. A block is complete when later text can't change it: code
    at its closing fence, a heading at its line's end, all else where the next begins."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._rest = ""
        self._fence = ""

    @property
    def open(self) -> str:
        return "\n".join([*self._lines, self._rest]).rstrip("\n")

    def add(self, piece: str) -> list[str]:
        """Take the next piece; return the blocks that are complete now."""
        *lines, self._rest = (self._rest + piece).split("\n")
        return [block for line in lines for block in self._add_line(line)]

    def close(self) -> list[str]:
        """Return the remaining blocks, and begin another text."""
        blocks = [*self._add_line(self._rest), self._take()]
        self._rest, self._fence = "", ""
        return [block for block in blocks if block]

    def _add_line(self, line: str) -> list[str]:
        blocks = [self._take()] if self._begins_another(line) else []
        if line.strip() or self._lines:
            self._lines.append(line)
        if self._ends_with(line):
            blocks.append(self._take())
        return [block for block in blocks if block]

    def _take(self) -> str:
        text = "\n".join(self._lines).rstrip("\n")
        self._lines = []
        return text

    def _begins_another(self, line: str) -> bool:
        if self._fence or not self._lines or not line.strip() or line[0] in " \t":
            return False
        if _HEADING.match(line) or _opening(line):
            return True
        if self._lines[-1].strip():
            return False
        return not (_ITEM.match(line) and _ITEM.match(self._lines[0]))

    def _ends_with(self, line: str) -> bool:
        if self._fence:
            if _closes(line, self._fence):
                self._fence = ""
                return _opening(self._lines[0]) != "" and self._lines[0][0] in "`~"
            return False
        self._fence = _opening(line)
        return len(self._lines) == 1 and _HEADING.match(line) is not None


def _opening(line: str) -> str:
    match = _FENCE.match(line)
    if match is None or (match[1][0] == "`" and "`" in match[2]):
        return ""
    return match[1]


def _closes(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and set(mark) == {fence[0]}
