"""The state of one answer in its grammar. Owned by one thread at a time.

Nothing here raises: an error of the engine becomes `problem`, and then only the end is allowed.
Copies share only the lexer.
"""

import time
from collections.abc import Callable
from copy import copy
from typing import TypeVar

from llguidance import LLMatcher

from omlx_server.text.grammar.bounds import SECONDS, SECONDS_PER_TOKEN
from omlx_server.text.grammar.masks import mask_of, set_bits

T = TypeVar("T")

# What the engine says of a token outside the mask, quoting it; all else are limits of its own.
_UNFIT = "doesn't satisfy the grammar"


class GrammarConstraint:
    """`size`: the width of the model's logits; `eos_ids`: the tokens that end an answer."""

    takes_drafts = True

    def __init__(self, matcher: LLMatcher, size: int, eos_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._size = size
        self._eos_ids = eos_ids
        self._mask: bytes | None = None
        self._refused: str | None = None
        self._taken = 0
        self._seconds = SECONDS  # what is left of the budget; once used up, it stays so

    def mask(self) -> bytes:
        """Return a bit per token id: bit `id % 32` of 32-bit little-endian word `id // 32`,
        ceil(size / 32) words. At least one is set; end tokens are set exactly where the grammar
        may end."""
        if self._seconds <= 0:
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
        self._taken += 1
        if self._seconds > 0:
            self._seconds = min(SECONDS, self._seconds + SECONDS_PER_TOKEN)
        if not 0 <= token < self._size:
            self._matcher.consume_token(self._size)  # as wrong, and a number that it can take
            self._refused = f"token {token} is not in the vocabulary"
            return
        taken = self._timed(lambda: self._matcher.consume_token(token))
        if not taken and _UNFIT in self._matcher.get_error():
            self._refused = f"token {token} does not fit the grammar"

    def forced(self) -> list[int]:
        """Return the tokens of the only possible text, without an end token."""
        if self.problem is not None or self._matcher.is_stopped():
            return []
        if forced := self._timed(self._matcher.compute_ff_tokens):
            return forced
        allowed = self._few(1)
        return allowed if self.problem is None and not self._eos_ids.issuperset(allowed) else []

    @property
    def done(self) -> bool:
        if self._matcher.is_stopped():
            return True
        allowed = self._few(len(self._eos_ids))
        return bool(allowed) and self._eos_ids.issuperset(allowed)

    def _few(self, most: int) -> list[int]:
        mask = self.mask()
        if len(mask) - mask.count(0) > most:
            return []
        bits = int.from_bytes(mask, "little")
        return list(set_bits(bits)) if bits.bit_count() <= most else []

    @property
    def problem(self) -> str | None:
        """Why this answer can't go on; None while it can."""
        if self._refused is not None:
            return self._refused
        if self._matcher.is_error():
            return costly(self._taken, one_line(self._matcher.get_error()))
        return costly(self._taken, SLOW) if self._seconds <= 0 else None

    @property
    def too_costly(self) -> bool:
        return self._refused is None and self.problem is not None

    def copy(self) -> "GrammarConstraint":
        copied = copy(self)
        copied._matcher = self._matcher.deep_copy()
        return copied

    def _timed(self, work: Callable[[], T]) -> T:
        begun = time.thread_time()
        done = work()
        self._seconds -= time.thread_time() - begun
        return done


SLOW = "its tokens take too long"


def costly(token: int, why: str) -> str:
    return f"the grammar is too expensive at token {token + 1} of what it describes: {why}"


def one_line(error: str) -> str:
    return " ".join(error.partition("\n<")[0].split())[:300] or "unknown error"
