"""A constraint that keeps words out of an answer, as in vLLM. Owned by one thread at a time. A
ban that would leave no token is ignored."""

from collections.abc import Iterator, Sequence

from omlx_server.core.request import Constraint
from omlx_server.text.grammar.wrappers import ConstraintWrapper, FixedMask
from omlx_server.text.tokenizer import Tokenizer

Spelling = tuple[int, ...]


def spellings(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[Spelling, ...]:
    """Return the distinct token sequences of all words, each as it stands and after a blank."""
    forms = [form for word in words for form in (word, " " + word.lstrip())]
    sequences = {tuple(tokenizer.encode(form, special=False)) for form in forms}
    return tuple(sorted(spelling for spelling in sequences if spelling))


class BadWords(ConstraintWrapper):
    """Bans the spellings `words`. `size`: the width of the logits. `inner`: another constraint
    to obey."""

    def __init__(self, words: Sequence[Spelling], size: int, inner: Constraint | None) -> None:
        super().__init__(FixedMask(b"\xff" * ((size + 31) // 32 * 4)) if inner is None else inner)
        self._spellings = words
        self._longest = max(map(len, words), default=1)
        self._last_tokens: Spelling = ()

    def mask(self) -> bytes:
        mask_of_inner = self._inner.mask()
        allowed = bytearray(mask_of_inner)
        for token in self._completing_tokens():
            if token // 8 < len(allowed):
                allowed[token // 8] &= ~(1 << token % 8)
        return bytes(allowed) if any(allowed) else mask_of_inner

    def take(self, token: int) -> None:
        self._last_tokens = (*self._last_tokens, token)[-self._longest :]
        self._inner.take(token)

    def forced(self) -> Sequence[int]:
        return self._inner.forced()

    def _completing_tokens(self) -> Iterator[int]:
        for *beginning, last in self._spellings:
            if not beginning or self._last_tokens[-len(beginning) :] == tuple(beginning):
                yield last
