"""The little Markdown that the pages need. Pure."""

import re
from collections.abc import Iterable, Sequence

_NOTICE = "<!-- Made by `scripts/docs reference`: change what it is made from, not this page. -->"


def whole_page(title: str, about: str, parts: Iterable[str]) -> str:
    """One file."""
    return "\n\n".join([f"# {title}", _NOTICE, about, *parts]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells may hold Markdown of one line."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def block(language: str, text: str) -> str:
    """A fenced block."""
    return f"```{language}\n{text}\n```"


def escaped(text: str) -> str:
    """Means nothing to Markdown, but for what stands between backticks."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([<*\[])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
