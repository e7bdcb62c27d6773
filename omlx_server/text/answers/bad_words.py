"""Words that an answer must not hold, as a constraint. Owned by one thread at a time.

A word can be spelled at the start of a text and after a blank; both are kept out. Of a word of
several tokens the last one is kept out where the others stand before it, as vLLM has it. Where a
ban would leave nothing to choose, it is not obeyed.
"""

from collections.abc import Iterator, Sequence

from omlx_server.core.request import Constraint
from omlx_server.text.tokenizer import Tokenizer

Spelling = tuple[int, ...]


def spellings(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[Spelling, ...]:
    """The tokens of each word, alone and after a blank."""
    forms = [form for word in words for form in (word, " " + word.lstrip())]
    found = {tuple(tokenizer.encode(form, special=False)) for form in forms}
    return tuple(sorted(spelling for spelling in found if spelling))


class BadWords:
    """`size`: the width of the model's logits. `inner`: what else the answer must obey."""

    def __init__(self, words: Sequence[Spelling], size: int, inner: Constraint | None) -> None:
        self._words = words
        self._longest = max(map(len, words), default=1)
        self._size = size
        self._inner = inner
        self._last: Spelling = ()

    @property
    def done(self) -> bool:
        return self._inner is not None and self._inner.done

    @property
    def problem(self) -> str | None:
        return None if self._inner is None else self._inner.problem

    @property
    def too_costly(self) -> bool:
        return self._inner is not None and self._inner.too_costly

    def copy(self) -> "BadWords":
        inner = None if self._inner is None else self._inner.copy()
        copied = BadWords(self._words, self._size, inner)
        copied._last = self._last
        return copied

    def mask(self) -> bytes:
        words = (self._size + 31) // 32 * 4
        allowed = bytearray(b"\xff" * words if self._inner is None else self._inner.mask())
        free = bytes(allowed)
        for token in self._banned():
            if token // 8 < len(allowed):
                allowed[token // 8] &= ~(1 << token % 8)
        return bytes(allowed) if any(allowed) else free

    def take(self, token: int) -> None:
        self._last = (*self._last, token)[-self._longest :]
        if self._inner is not None:
            self._inner.take(token)

    def forced(self) -> Sequence[int]:
        """What a grammar forces comes, bad word or not."""
        return () if self._inner is None else self._inner.forced()

    def _banned(self) -> Iterator[int]:
        for *before, last in self._words:
            if not before or self._last[-len(before) :] == tuple(before):
                yield last
