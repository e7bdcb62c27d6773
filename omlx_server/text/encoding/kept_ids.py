"""A cache of token ids by text, least recently used first out. Safe in any thread. All tenants
share it."""

import sys
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

_ENTRY_BYTES = 256
"""Bytes of an entry besides its text and its ids. They bound the number of tiny entries, too."""


@dataclass(frozen=True, slots=True)
class Characters:
    """Counts of the characters of encoded texts, and of those whose ids were cached."""

    encoded: int = 0
    reused: int = 0

    def __add__(self, other: "Characters") -> "Characters":
        return Characters(self.encoded + other.encoded, self.reused + other.reused)


class KeptIds:
    """The ids of texts of one encoder, in at most `most_bytes` with their texts."""

    def __init__(self, most_bytes: int = 0) -> None:
        self._most_bytes = most_bytes
        self._ids: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = Lock()
        self.nbytes = 0
        self.characters = Characters()

    def find(self, texts: Sequence[str]) -> dict[str, "array[int]"]:
        ids_by_text: dict[str, array[int]] = {}
        reused = 0
        with self._lock:
            for text in texts:
                ids = self._ids.get(text)
                if ids is not None:
                    self._ids.move_to_end(text)
                    ids_by_text[text] = ids
                    reused += len(text)
            self.characters += Characters(sum(map(len, texts)) - reused, reused)
        return ids_by_text

    def keep(self, text: str, ids: "array[int]") -> None:
        if not self._most_bytes:
            return
        size = _bytes_of(text, ids)
        if size > self._most_bytes // 4:
            return
        with self._lock:
            if text in self._ids:
                return
            self._ids[text] = ids
            self.nbytes += size
            while self.nbytes > self._most_bytes:
                self.nbytes -= _bytes_of(*self._ids.popitem(last=False))


def _bytes_of(text: str, ids: "array[int]") -> int:
    return sys.getsizeof(text) + sys.getsizeof(ids) + _ENTRY_BYTES
