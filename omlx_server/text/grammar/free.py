"""Any text, in which only a call keeps to something. Owned by one thread at a time.

The grammar of calls (`tools.free_calls`) follows the text, which may end anywhere but in a call.
So where an end token is allowed, no call is open, and nothing is forced or masked: the answer is
what the model says without the grammar. What the grammar does not know as text (a control token) is
passed over.
"""

from collections.abc import Callable, Sequence

from omlx_server.core.request import Constraint
from omlx_server.text.grammar.constraint import mask_of


class Free:
    """`calls` is never changed itself. `size`: the width of the model's logits."""

    def __init__(
        self,
        calls: Constraint,
        size: int,
        eos_ids: Sequence[int],
        bytes_of: Callable[[int], bytes],
    ) -> None:
        self._first = calls
        self._calls = calls.copy()
        self._all = mask_of(size, range(size))
        self._ends = int.from_bytes(mask_of(size, eos_ids), "little")
        self._bytes_of = bytes_of
        self._tail = b""
        self._open = False

    @property
    def done(self) -> bool:
        return self._calls.done

    @property
    def problem(self) -> str | None:
        return self._calls.problem

    @property
    def too_costly(self) -> bool:
        return self._calls.too_costly

    def copy(self) -> "Free":
        copied = Free.__new__(Free)
        copied._first, copied._all, copied._ends = self._first, self._all, self._ends
        copied._bytes_of, copied._tail, copied._open = self._bytes_of, self._tail, self._open
        copied._calls = self._calls.copy()
        return copied

    def mask(self) -> bytes:
        return self._calls.mask() if self._open or self._calls.done else self._all

    def take(self, token: int) -> None:
        if not self._open and self._ends >> token & 1:
            return  # that it ends nothing here (`ignore_eos`) is not for a grammar to say
        if self._open or _holds(self._calls.mask(), token):
            self._calls.take(token)
        else:
            self._calls = self._first.copy()
        self._tail = (self._tail + self._bytes_of(token))[-4:]
        self._open = self._is_open()

    def forced(self) -> Sequence[int]:
        return self._calls.forced() if self._open else ()

    def _is_open(self) -> bool:
        if int.from_bytes(self._calls.mask(), "little") & self._ends:
            return False
        # No text ends in the middle of a character.
        return self._open or not _cut(self._tail)


def _holds(mask: bytes, token: int) -> bool:
    return token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)


def _cut(text: bytes) -> bool:
    """Whether bytes of its last character are still to come."""
    for count, byte in enumerate(reversed(text), 1):
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return count < length
    return False
