"""Encodes texts piece by piece, while other threads go on, and only what is new of a text. Any
thread.

The library releases the GIL in `encode_batch_fast` only, and needs a hundred times a text's size in
memory.
"""

import os
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock
from typing import Final

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE, Unigram

from omlx_server.errors import PromptTooLong, TooManyTokens
from omlx_server.text.encoding.controls import ControlCuts
from omlx_server.text.encoding.seams import Seams

WORDS = 256
"""In words: 4 MB at most. Encoding is 10 % slower than with 10,000 words, no faster with 1,000."""


_ENTRY_BYTES = 256
"""Bytes of an entry besides its text and its ids. They bound the number of tiny entries, too."""
PIECE = 1 << 12
"""In characters: a longer text without a control token is cut at the first seam after so many."""
BATCH = 1 << 16
"""In characters: pieces of together so many are given to the library at once."""


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


# The library's own threads would be shared: a short text would wait behind the longest ones.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


Encode = Callable[[], list[Encoding]]
IN_TURN: Final[ContextVar[Callable[[Encode], list[Encoding]]]] = ContextVar(
    "in_turn", default=lambda encode: encode()
)
"""Runs the library's work on one batch of a long text, when it is its turn. What it raises ends the
encoding. The library's work releases the GIL, so only that may run on threads of low priority: one
that waited for a processor while it holds the GIL would stop all other threads."""


class PieceEncoder:
    """`cuts`: where a text can be cut besides at seams. `kept`: a cache of ids. `translate`: turns
    the library's ids of a piece into the model's."""

    def __init__(
        self,
        backend: Backend,
        piece: int = PIECE,
        batch: int = BATCH,
        *,
        cuts: ControlCuts | None = None,
        kept: KeptIds | None = None,
        translate: Callable[[list[int]], list[int]] = lambda ids: ids,
    ) -> None:
        self._backend = backend
        self._piece_chars = piece
        self._batch_chars = batch
        self._cuts = cuts or ControlCuts(backend, ())
        self._known_ids = kept or KeptIds()
        self._translate = translate

    def prepare(self) -> None:
        self._cuts.prepare()
        _ = self._seams

    @cached_property
    def _seams(self) -> Seams:
        return Seams(self._backend, size=self._piece_chars)

    @cached_property
    def _ids_around(self) -> tuple[list[int], list[int]]:
        """The special ids before and behind every text."""
        bare, framed = (self._encode_batch(["a"], special=flag)[0].ids for flag in (False, True))
        start = next(i for i in range(len(framed)) if framed[i : i + len(bare)] == bare)
        return framed[:start], framed[start + len(bare) :]

    def ids(self, text: str, most: int | None = None, *, special: bool = False) -> list[int]:
        """Return the token ids of `text`; with `special`, also those around every text. Raises
        TooManyTokens for more than `most`, NoSeam where a part can't be cut."""
        before, behind = self._ids_around if special else ([], [])
        ids, long = array("I", before), len(text) > self._batch_chars
        for batch in _batches(self._pieces(text), self._batch_chars):
            self._add_ids(ids, batch, most, long=long)
        _check(len(ids) + len(behind), most)
        return ids.tolist() + behind

    def beginning(self, text: str, count: int) -> list[int]:
        """Return the ids of the text's first pieces, at least `count` if there are as many."""
        ids, long = array("I"), len(text) > self._batch_chars
        for piece in self._pieces(text):
            self._add_ids(ids, [piece], None, long=long)
            if len(ids) >= count:
                break
        return ids.tolist()

    def counts(self, texts: Sequence[str], most: int) -> list[int]:
        """Return the number of tokens of each text, `most` + 1 for more."""
        counts: list[int] = []
        long = sum(map(len, texts)) > self._batch_chars
        for batch in _batches(texts, self._batch_chars):
            if len(batch) > 1:
                encodings = self._encode_batch(batch, long=long)
                counts += (min(len(encoding), most + 1) for encoding in encodings)
            else:
                counts.append(self._count_one(batch[0], most))
        return counts

    def _count_one(self, text: str, most: int) -> int:
        try:
            return len(self.ids(text, most))
        except PromptTooLong:
            return most + 1

    def _pieces(self, text: str) -> Iterator[str]:
        for part in self._cuts.parts(text):
            if len(part) > self._piece_chars:
                yield from self._seams.pieces(part)
            else:
                yield part

    def _add_ids(
        self, ids: "array[int]", pieces: list[str], most: int | None, *, long: bool
    ) -> None:
        cached = self._known_ids.find(pieces)
        new = [piece for piece in dict.fromkeys(pieces) if piece not in cached]
        encodings = dict(zip(new, self._encode_batch(new, long=long), strict=True))
        # Before a list of millions is made, for which the GIL would be held.
        count = sum(len(cached.get(piece) or encodings.get(piece) or ()) for piece in pieces)
        _check(len(ids) + count, most)
        for piece, encoding in encodings.items():
            cached[piece] = array("I", self._translate(encoding.ids))
            self._known_ids.keep(piece, cached[piece])
        for piece in pieces:
            ids.extend(cached[piece])

    def _encode_batch(
        self, texts: list[str], *, special: bool = False, long: bool = False
    ) -> list[Encoding]:
        encode = partial(self._backend.encode_batch_fast, texts, add_special_tokens=special)
        return IN_TURN.get()(encode) if long and texts else encode()


def _check(count: int, most: int | None) -> None:
    if most is not None and count > most:
        raise TooManyTokens(most, count)


def _batches(texts: Iterable[str], most: int) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > most:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def bound(backend: Backend) -> None:
    """Let `backend` (BPE or unigram) keep at most WORDS words. It must not have encoded anything
    yet."""
    model = backend.model
    if isinstance(model, BPE | Unigram):
        # The library's own way, for all that it has an underscore: no public one exists for a
        # tokenizer that comes from a file.
        model._resize_cache(WORDS)
