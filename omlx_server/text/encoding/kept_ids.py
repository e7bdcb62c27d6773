"""Token ids of texts that were encoded before, so that of a conversation that grows only the new
part is encoded. A text that was not used for the longest time is dropped first. Any thread.

A key is the text itself, so a hit gives exactly what was kept for that text. Clients of all tenants
share what is kept. A client whose text is kept waits a few milliseconds less; the time tells it
nothing of another client's text but that somebody has sent this very piece.
"""

import sys
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

_ENTRY = 256
"""In bytes: what an entry takes besides its text and its ids. It bounds the entries, too."""


@dataclass(frozen=True, slots=True)
class Characters:
    """How many characters of texts were encoded, and of how many the ids were kept."""

    encoded: int = 0
    reused: int = 0

    def __add__(self, other: "Characters") -> "Characters":
        return Characters(self.encoded + other.encoded, self.reused + other.reused)


class KeptIds:
    """The ids of texts of one encoder, in at most `most_bytes` with their texts; 0 keeps none."""

    def __init__(self, most_bytes: int = 0) -> None:
        self._most_bytes = most_bytes
        self._ids: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = Lock()
        self.nbytes = 0
        self.characters = Characters()

    def find(self, texts: Sequence[str]) -> dict[str, "array[int]"]:
        """The ids of those of `texts` that are kept. The others count as encoded."""
        found: dict[str, array[int]] = {}
        reused = 0
        with self._lock:
            for text in texts:
                ids = self._ids.get(text)
                if ids is not None:
                    self._ids.move_to_end(text)
                    found[text] = ids
                    reused += len(text)
            self.characters += Characters(sum(map(len, texts)) - reused, reused)
        return found

    def keep(self, text: str, ids: "array[int]") -> None:
        """Keep the ids of a text. A text of more than a quarter of the room is not kept, because
        most others would go for it."""
        if not self._most_bytes:
            return
        size = _size(text, ids)
        if size > self._most_bytes // 4:
            return
        with self._lock:
            if text in self._ids:
                return
            self._ids[text] = ids
            self.nbytes += size
            while self.nbytes > self._most_bytes:
                self.nbytes -= _size(*self._ids.popitem(last=False))


def _size(text: str, ids: "array[int]") -> int:
    return sys.getsizeof(text) + sys.getsizeof(ids) + _ENTRY
