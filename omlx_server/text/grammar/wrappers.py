"""Constraints that add something to another one. Owned by one thread at a time."""

from collections.abc import Sequence
from copy import copy
from typing import Self

from omlx_server.core.request import Constraint
from omlx_server.text.grammar.constraint import allows, full_mask, mask_of
from omlx_server.text.grammar.vocabulary import Vocabulary


class FixedMask:
    """A constraint that always allows every token of `mask`."""

    done = False
    problem: str | None = None
    too_costly = False
    takes_drafts = True

    def __init__(self, mask: bytes) -> None:
        self._mask = mask

    def copy(self) -> Self:
        return self

    def mask(self) -> bytes:
        return self._mask

    def take(self, token: int) -> None: ...
    def forced(self) -> Sequence[int]:
        return ()


class ConstraintWrapper:
    """Base of constraints around another one, `inner`, which the answer must obey, too."""

    def __init__(self, inner: Constraint) -> None:
        self._inner = inner

    @property
    def done(self) -> bool:
        return self._inner.done

    @property
    def problem(self) -> str | None:
        return self._inner.problem

    @property
    def too_costly(self) -> bool:
        return self._inner.too_costly

    @property
    def takes_drafts(self) -> bool:
        return self._inner.takes_drafts

    def copy(self) -> Self:
        copied = copy(self)
        copied._inner = self._inner.copy()
        return copied


class FreeTextConstraint(ConstraintWrapper):
    """`calls`: the first state of a grammar of text with calls, never changed."""

    def __init__(self, calls: Constraint, vocabulary: Vocabulary) -> None:
        super().__init__(calls.copy())
        self._first_state = calls
        self._full_mask = full_mask(vocabulary.size)
        self._eos_bits = int.from_bytes(mask_of(vocabulary.size, vocabulary.eos_ids), "little")
        self._bytes_of = vocabulary.bytes_of
        self._last_bytes = b""
        self._in_call = False

    def mask(self) -> bytes:
        return self._inner.mask() if self._in_call or self._inner.done else self._full_mask

    def take(self, token: int) -> None:
        if not self._in_call and self._eos_bits >> token & 1:
            return  # that it ends nothing here (`ignore_eos`) is not for a grammar to say
        if self._in_call or allows(self._inner.mask(), token):
            self._inner.take(token)
        else:
            self._inner = self._first_state.copy()
        self._last_bytes = (self._last_bytes + self._bytes_of(token))[-4:]
        self._in_call = self._is_in_call()

    def forced(self) -> Sequence[int]:
        return self._inner.forced() if self._in_call else ()

    def _is_in_call(self) -> bool:
        if int.from_bytes(self._inner.mask(), "little") & self._eos_bits:
            return False
        # Text can end anywhere but within a character, a call nowhere.
        return self._in_call or not _ends_within_character(self._last_bytes)


def _ends_within_character(text: bytes) -> bool:
    for length, byte in enumerate(reversed(text), 1):
        if byte & 0xC0 != 0x80:  # the first byte of a character, of which `length` bytes are here
            return length < 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
    return False
