"""Hides control texts in a client's strings while a template runs, so that none acts as control.

Each becomes unguessable digits, as do heads and tails that could join to one; `restore` puts them
back. A Shield belongs to one rendering.
"""

import re
from collections.abc import Iterable
from typing import Any

from omlx_server.text.encoding import searching
from omlx_server.text.encoding.controls import nonce, pattern_of


class ControlTexts:
    """The texts that a shield looks for. Immutable, made once per tokenizer."""

    def __init__(self, texts: Iterable[str]) -> None:
        wanted = [text for text in texts if text]
        self.pattern = pattern_of(wanted)
        self._heads = {text[:cut] for text in wanted for cut in range(1, len(text))}
        self._tails = {text[cut:] for text in wanted for cut in range(1, len(text))}
        # A fragment of letters alone is an ordinary word, which templates compare with.
        self._heads = {head for head in self._heads if re.search(r"[^\w\s]", head)}
        self._tails = {tail for tail in self._tails if re.search(r"[^\w\s]", tail)}
        self._first_chars = {text[0] for text in wanted}
        self._last_chars = {text[-1] for text in wanted}
        self.longest = max(map(len, wanted), default=0)

    def leading(self, text: str) -> int:
        """Return the length of the longest start of `text` that could end a control text."""
        for length in range(min(self.longest, len(text)), 0, -1):
            if text[length - 1] in self._last_chars and text[:length] in self._tails:
                return length
        return 0

    def trailing(self, text: str) -> int:
        """Return the length of the longest end of `text` that could begin a control text."""
        for length in range(min(self.longest, len(text)), 0, -1):
            if text[-length] in self._first_chars and text[-length:] in self._heads:
                return length
        return 0


class Shield:
    def __init__(self, controls: ControlTexts) -> None:
        self._controls = controls
        self._nonce = nonce()
        self._slots: dict[str, str] = {}
        self._texts: list[str] = []

    def cover(self, text: str) -> str:
        text = searching.replaced(
            self._controls.pattern,
            lambda match: self._hide(match[0]),
            text,
            reach=self._controls.longest,
        )
        core = text.strip()
        if not core:
            return text
        start = text.index(core)
        end = start + len(core)
        head = start + self._controls.leading(core)
        tail = end - self._controls.trailing(text[head:end])
        return (
            text[:start]
            + self._hide(text[start:head])
            + text[head:tail]
            + self._hide(text[tail:end])
            + text[end:]
        )

    def restore(self, rendering: str) -> str:
        if not self._texts:
            return rendering
        slot = re.compile(rf"{self._nonce}(\d{{6}})")
        longest = len(self._nonce) + 6
        return searching.replaced(
            slot, lambda match: self._texts[int(match[1])], rendering, reach=longest
        )

    def _hide(self, text: str) -> str:
        if not text:
            return ""
        if text not in self._slots:
            self._slots[text] = f"{self._nonce}{len(self._texts):06d}"
            self._texts.append(text)
        return self._slots[text]


def plain(value: Any, shield: Shield) -> Any:
    """Return a copy of a JSON value in plain types, with control texts hidden. Raises TypeError
    for anything else."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return shield.cover(str.__str__(value))
    if isinstance(value, dict):
        return {plain(key, shield): plain(item, shield) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, shield) for item in value]
    raise TypeError(f"not a JSON value: {type(value).__name__}")
