"""Hides control texts in a client's strings while a template runs, so that none acts as control.

Each becomes unguessable digits, as do heads and tails that could join to one; `restore` puts them
back. A Shield belongs to one rendering.
"""

import re
from collections.abc import Iterable
from typing import Any

from omlx_server.text.encoding import searching
from omlx_server.text.encoding.controls import pattern_of, random_digits

_SYMBOL = re.compile(r"[^\w\s]")


class ControlTexts:
    """The texts that a shield looks for. Immutable, made once per tokenizer."""

    def __init__(self, texts: Iterable[str]) -> None:
        control_texts = [text for text in texts if text]
        self.pattern = pattern_of(control_texts)
        beginnings = {text[:cut] for text in control_texts for cut in range(1, len(text))}
        endings = {text[cut:] for text in control_texts for cut in range(1, len(text))}
        # A fragment of letters alone is an ordinary word, which templates compare with.
        self._beginnings = {fragment for fragment in beginnings if _SYMBOL.search(fragment)}
        self._endings = {fragment for fragment in endings if _SYMBOL.search(fragment)}
        self._first_chars = {text[0] for text in control_texts}
        self._last_chars = {text[-1] for text in control_texts}
        self.longest = max(map(len, control_texts), default=0)

    def leading(self, text: str) -> int:
        """Return the length of the longest start of `text` that could end a control text."""
        for length in range(min(self.longest, len(text)), 0, -1):
            if text[length - 1] in self._last_chars and text[:length] in self._endings:
                return length
        return 0

    def trailing(self, text: str) -> int:
        """Return the length of the longest end of `text` that could begin a control text."""
        for length in range(min(self.longest, len(text)), 0, -1):
            if text[-length] in self._first_chars and text[-length:] in self._beginnings:
                return length
        return 0


class Shield:
    """The hidden texts of one rendering."""

    def __init__(self, controls: ControlTexts) -> None:
        self._controls = controls
        self._nonce = random_digits()
        self._digits_of: dict[str, str] = {}
        self._texts: list[str] = []

    def cover(self, text: str) -> str:
        """Hide control texts, and what the text begins or ends with that others could complete."""
        text = searching.replace_all(
            self._controls.pattern,
            lambda match: self._hide(match[0]),
            text,
            reach=self._controls.longest,
        )
        core = text.strip()
        if not core:
            return text
        before, _, behind = text.partition(core)
        start = self._controls.leading(core)
        end = len(core) - self._controls.trailing(core[start:])
        head, tail = self._hide(core[:start]), self._hide(core[end:])
        return f"{before}{head}{core[start:end]}{tail}{behind}"

    def restore(self, rendering: str) -> str:
        if not self._texts:
            return rendering
        hidden = re.compile(rf"{self._nonce}(\d{{6}})")
        length = len(self._nonce) + 6
        return searching.replace_all(
            hidden, lambda match: self._texts[int(match[1])], rendering, reach=length
        )

    def _hide(self, text: str) -> str:
        if not text:
            return ""
        if text not in self._digits_of:
            self._digits_of[text] = f"{self._nonce}{len(self._texts):06d}"
            self._texts.append(text)
        return self._digits_of[text]


def shielded_copy(value: Any, shield: Shield) -> Any:
    """Return a copy of a JSON value in plain types, with control texts hidden. Raises TypeError
    for anything else."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return shield.cover(str.__str__(value))
    if isinstance(value, dict):
        pairs = value.items()
        return {shielded_copy(key, shield): shielded_copy(item, shield) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [shielded_copy(item, shield) for item in value]
    raise TypeError(f"not a JSON value: {type(value).__name__}")
