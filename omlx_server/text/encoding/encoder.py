"""Encodes texts piece by piece, while other threads go on, and only what is new of a text. Any
thread.

The library releases the GIL in `encode_batch_fast` only, and needs a hundred times a text's size in
memory.
"""

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import cached_property, partial
from typing import Final

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from omlx_server.errors import PromptTooLong, TooManyTokens
from omlx_server.text.encoding.control_cuts import ControlCuts
from omlx_server.text.encoding.kept_ids import KeptIds
from omlx_server.text.encoding.seams import Seams

# The library's own threads would be shared: a short text would wait behind the longest ones.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

PIECE = 1 << 12
"""In characters: a longer text without a control token is cut at the first seam after so many."""
BATCH = 1 << 16
"""In characters: pieces of together so many are given to the library at once."""

Encode = Callable[[], list[Encoding]]
IN_TURN: Final[ContextVar[Callable[[Encode], list[Encoding]]]] = ContextVar(
    "in_turn", default=lambda encode: encode()
)
"""Runs the library's work on one batch of a long text, when it is its turn. What it raises ends the
encoding. The library's work releases the GIL, so only that may run on threads of low priority: one
that waited for a processor while it holds the GIL would stop all other threads."""


class PieceEncoder:
    """`cuts`: where a text can be cut besides at seams. `kept`: a cache of ids. `meaning`: what
    the ids of a piece stand for."""

    def __init__(
        self,
        backend: Backend,
        piece: int = PIECE,
        batch: int = BATCH,
        *,
        cuts: ControlCuts | None = None,
        kept: KeptIds | None = None,
        meaning: Callable[[list[int]], list[int]] = lambda ids: ids,
    ) -> None:
        self._backend = backend
        self._piece = piece
        self._batch = batch
        self._cuts = cuts or ControlCuts(backend, ())
        self._kept = kept or KeptIds()
        self._meaning = meaning

    def prepare(self) -> None:
        self._cuts.prepare()
        _ = self._seams

    @cached_property
    def _seams(self) -> Seams:
        return Seams(self._backend, size=self._piece)

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        bare, framed = (self._native(["a"], special=special)[0].ids for special in (False, True))
        start = next(i for i in range(len(framed)) if framed[i : i + len(bare)] == bare)
        return framed[:start], framed[start + len(bare) :]

    def ids(self, text: str, most: int | None = None, *, special: bool = False) -> list[int]:
        """Return the token ids of `text`; with `special`, also those around every text. Raises
        TooManyTokens for more than `most`, NoSeam where a part can't be cut."""
        before, behind = self._frame if special else ([], [])
        ids, long = array("I", before), len(text) > self._batch
        for batch in _batches(self._pieces(text), self._batch):
            self._add(ids, batch, most, long=long)
        _check(len(ids) + len(behind), most)
        return ids.tolist() + behind

    def beginning(self, text: str, count: int) -> list[int]:
        """Return the ids of the text's first pieces, at least `count` if there are as many."""
        ids, long = array("I"), len(text) > self._batch
        for piece in self._pieces(text):
            self._add(ids, [piece], None, long=long)
            if len(ids) >= count:
                break
        return ids.tolist()

    def counts(self, texts: Sequence[str], most: int) -> list[int]:
        """Return the number of tokens of each text, `most` + 1 for more."""
        counts: list[int] = []
        long = sum(map(len, texts)) > self._batch
        for batch in _batches(texts, self._batch):
            if len(batch) > 1:
                counts += (min(len(one), most + 1) for one in self._native(batch, long=long))
            else:
                counts.append(self._count(batch[0], most))
        return counts

    def _count(self, text: str, most: int) -> int:
        try:
            return len(self.ids(text, most))
        except PromptTooLong:
            return most + 1

    def _pieces(self, text: str) -> Iterator[str]:
        for part in self._cuts.parts(text):
            if len(part) > self._piece:
                yield from self._seams.pieces(part)
            else:
                yield part

    def _add(self, ids: "array[int]", pieces: list[str], most: int | None, *, long: bool) -> None:
        """Raises TooManyTokens before a list of millions is made, for which the GIL would be
        held."""
        cached = self._kept.find(pieces)
        new = [piece for piece in dict.fromkeys(pieces) if piece not in cached]
        encodings = dict(zip(new, self._native(new, long=long), strict=True))
        _check(len(ids) + sum(len(cached.get(p) or encodings.get(p) or ()) for p in pieces), most)
        for piece, encoding in encodings.items():
            cached[piece] = array("I", self._meaning(encoding.ids))
            self._kept.keep(piece, cached[piece])
        for piece in pieces:
            ids.extend(cached[piece])

    def _native(
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
