"""The state of one answer in its grammar. Owned by one thread at a time.

Nothing here raises: an error of the engine becomes `problem`, and then only the end is allowed.
Copies share only the lexer.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import TypeVar

from llguidance import LLMatcher

from omlx_server.text.grammar.bounds import SECONDS, SECONDS_PER_TOKEN

T = TypeVar("T")

# What the engine says of a token outside the mask. Its other errors are limits that it came to.
_NOT_IN_MASK = "doesn't satisfy the grammar"


def mask_of(size: int, tokens: Iterable[int]) -> bytes:
    """Return the mask of `size` tokens that allows exactly `tokens`."""
    words = bytearray((size + 31) // 32 * 4)
    for token in tokens:
        words[token // 8] |= 1 << token % 8
    return bytes(words)


def full_mask(size: int) -> bytes:
    return ((1 << size) - 1).to_bytes((size + 31) // 32 * 4, "little")


def union(one: bytes, other: bytes) -> bytes:
    size = max(len(one), len(other))
    bits = int.from_bytes(one, "little") | int.from_bytes(other, "little")
    return bits.to_bytes(size, "little")


def allows(mask: bytes, token: int) -> bool:
    return token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)


def positions_of_bits(bits: int) -> Iterator[int]:
    while bits:
        yield bits.bit_length() - 1
        bits &= ~(1 << bits.bit_length() - 1)


class GrammarConstraint:
    """`size`: the width of the model's logits; `eos_ids`: the tokens that end an answer."""

    takes_drafts = True

    def __init__(self, matcher: LLMatcher, size: int, eos_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._size = size
        self._eos_ids = eos_ids
        self._mask: bytes | None = None
        self._refusal: str | None = None
        self._tokens_taken = 0
        self._seconds_left = SECONDS  # of processor time; once used up, it stays so

    def mask(self) -> bytes:
        """Return a bit per token id: bit `id % 32` of 32-bit little-endian word `id // 32`,
        ceil(size / 32) words. At least one is set; end tokens are set exactly where the grammar
        may end."""
        if self._seconds_left <= 0:
            return mask_of(self._size, self._eos_ids)
        if self._mask is None:
            # The engine has room for one more than there are.
            mask = self._timed(self._matcher.compute_bitmask)
            self._mask = mask[: (self._size + 31) // 32 * 4]
        return self._mask

    def take(self, token: int) -> None:
        """Advance by one token. One outside the mask becomes the `problem`."""
        if self.problem is not None:
            return
        self._mask = None
        self._tokens_taken += 1
        if self._seconds_left > 0:
            self._seconds_left = min(SECONDS, self._seconds_left + SECONDS_PER_TOKEN)
        if not 0 <= token < self._size:
            # As wrong as `token`, but a number that the engine can take.
            self._matcher.consume_token(self._size)
            self._refusal = f"token {token} is not in the vocabulary"
            return
        fits = self._timed(lambda: self._matcher.consume_token(token))
        if not fits and _NOT_IN_MASK in self._matcher.get_error():
            self._refusal = f"token {token} does not fit the grammar"

    def forced(self) -> list[int]:
        """Return the tokens of the only possible text, without an end token."""
        if self.problem is not None or self._matcher.is_stopped():
            return []
        if forced := self._timed(self._matcher.compute_ff_tokens):
            return forced
        allowed = self._allowed_if_few(1)
        return allowed if self.problem is None and not self._eos_ids.issuperset(allowed) else []

    @property
    def done(self) -> bool:
        if self._matcher.is_stopped():
            return True
        allowed = self._allowed_if_few(len(self._eos_ids))
        return bool(allowed) and self._eos_ids.issuperset(allowed)

    def _allowed_if_few(self, most: int) -> list[int]:
        mask = self.mask()
        bytes_in_use = len(mask) - mask.count(0)
        if bytes_in_use > most:
            return []
        bits = int.from_bytes(mask, "little")
        return list(positions_of_bits(bits)) if bits.bit_count() <= most else []

    @property
    def problem(self) -> str | None:
        """Why this answer can't go on; None while it can."""
        if self._refusal is not None:
            return self._refusal
        if self._matcher.is_error():
            return too_costly_text(self._tokens_taken, short_reason(self._matcher.get_error()))
        return too_costly_text(self._tokens_taken, SLOW) if self._seconds_left <= 0 else None

    @property
    def too_costly(self) -> bool:
        return self._refusal is None and self.problem is not None

    def copy(self) -> "GrammarConstraint":
        copied = copy(self)
        copied._matcher = self._matcher.deep_copy()
        return copied

    def _timed(self, call: Callable[[], T]) -> T:
        start = time.thread_time()
        result = call()
        self._seconds_left -= time.thread_time() - start
        return result


SLOW = "its tokens take too long"


def too_costly_text(tokens_taken: int, why: str) -> str:
    return f"the grammar is too expensive at token {tokens_taken + 1} of what it describes: {why}"


def short_reason(error: str) -> str:
    return " ".join(error.partition("\n<")[0].split())[:300] or "unknown error"
