"""A constraint that allows any text and holds only calls to a grammar. Owned by one thread at a
time. It begins anew behind a control token that it doesn't know as text."""

from collections.abc import Sequence

from omlx_server.core.request import Constraint
from omlx_server.text.grammar.masks import all_of, holds, mask_of
from omlx_server.text.grammar.vocabulary import Vocabulary
from omlx_server.text.grammar.wrappers import Around


class Free(Around):
    """`calls`: the grammar's first state, never changed."""

    def __init__(self, calls: Constraint, vocabulary: Vocabulary) -> None:
        super().__init__(calls.copy())
        self._first = calls
        self._all = all_of(vocabulary.size)
        self._ends = int.from_bytes(mask_of(vocabulary.size, vocabulary.eos_ids), "little")
        self._bytes_of = vocabulary.bytes_of
        self._tail = b""
        self._open = False

    def mask(self) -> bytes:
        return self._inner.mask() if self._open or self._inner.done else self._all

    def take(self, token: int) -> None:
        if not self._open and self._ends >> token & 1:
            return  # that it ends nothing here (`ignore_eos`) is not for a grammar to say
        if self._open or holds(self._inner.mask(), token):
            self._inner.take(token)
        else:
            self._inner = self._first.copy()
        self._tail = (self._tail + self._bytes_of(token))[-4:]
        self._open = self._is_open()

    def forced(self) -> Sequence[int]:
        return self._inner.forced() if self._open else ()

    def _is_open(self) -> bool:
        if int.from_bytes(self._inner.mask(), "little") & self._ends:
            return False
        # No text ends in the middle of a character.
        return self._open or not _cut(self._tail)


def _cut(text: bytes) -> bool:
    for count, byte in enumerate(reversed(text), 1):
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return count < length
    return False
