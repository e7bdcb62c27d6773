"""Turns a text into token ids while other threads go on, and only what is new of it. Any thread.

The library holds the GIL for as long as `encode` takes, and releases it in `encode_batch_fast`,
which is used here. Encoding a text needs more than a hundred times its size in memory: so a long
text is encoded in batches of pieces, and no further than to the most tokens that are wanted. Where
a text is cut depends on what stands before the cut alone, so a text that grows at its end has the
pieces that it had, and their ids are kept.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from omlx_server.errors import TooManyTokens
from omlx_server.text.encoding.control_cuts import ControlCuts
from omlx_server.text.encoding.kept_ids import KeptIds
from omlx_server.text.encoding.low_priority import be_polite
from omlx_server.text.encoding.seams import Seams
from omlx_server.text.encoding.vocabulary import tokens_of

# The library's own threads would be shared: a short text would wait behind the longest ones.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

PIECE = 1 << 12
"""In characters: a longer text without a control token is cut at the first seam after so many."""
BATCH = 1 << 16
"""In characters: pieces of together so many are given to the library at once, and a longer text is
encoded on a thread of low priority."""

# Long texts are encoded on threads of low priority. Only the library's own work runs there, for
# which it releases the GIL: a thread of low priority that waited for a processor while it holds the
# GIL would stop all others, and a thread can't raise its priority again. There are as many threads
# as prompts are encoded at a time (api/text_threads.py), so none waits for the piece of another.
_POLITE = ThreadPoolExecutor(
    6, thread_name_prefix="encoding", initializer=be_polite, initargs=(10,)
)


class PieceEncoder:
    """Encodes texts piece by piece. `cuts` says where a text can be cut besides at seams, `kept`
    keeps the ids of pieces, and `meaning` says what the ids of a piece stand for."""

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
        """Find where texts can be cut, before the first one comes."""
        self._cuts.prepare()
        _ = self._seams

    @cached_property
    def _seams(self) -> Seams:
        tokens = (token.decode("latin-1") for token in tokens_of(self._backend))
        return Seams(self._backend, tokens, size=self._piece)

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        """What the model has before and behind every text of its own."""
        bare, framed = (self._native(["a"], special=special)[0].ids for special in (False, True))
        start = next(i for i in range(len(framed)) if framed[i : i + len(bare)] == bare)
        return framed[:start], framed[start + len(bare) :]

    def ids(self, text: str, most: int | None = None, *, special: bool = False) -> list[int]:
        """The token ids of `text`; with `special`, also those that the model puts around every
        text.

        Raises:
            TooManyTokens: there are more than `most`.
        """
        before, behind = self._frame if special else ([], [])
        ids, polite = list(before), len(text) > self._batch
        for batch in _batches(self._pieces(text), self._batch):
            self._add(ids, batch, most, polite=polite)
        return checked(ids + behind, most)

    def beginning(self, text: str, count: int) -> list[int]:
        """The ids of the text's first pieces: at least `count`, if the text has as many. Later
        pieces are not looked at."""
        ids: list[int] = []
        for piece in self._pieces(text):
            self._add(ids, [piece], None, polite=len(piece) > self._batch)
            if len(ids) >= count:
                break
        return ids

    def counts(self, texts: Sequence[str], most: int) -> list[int]:
        """The number of tokens of each text by itself; `most` + 1 for each text that has more."""
        found: list[int] = []
        for batch in _batches(texts, self._batch):
            if len(batch) > 1:
                found += (min(len(one), most + 1) for one in self._native(batch))
            else:
                found.append(self._count(batch[0], most))
        return found

    def _count(self, text: str, most: int) -> int:
        try:
            return len(self.ids(text, most))
        except TooManyTokens:
            return most + 1

    def _pieces(self, text: str) -> Iterator[str]:
        for part in self._cuts.parts(text):
            if len(part) > self._piece:
                yield from self._seams.pieces(part)
            else:
                yield part

    def _add(self, ids: list[int], pieces: list[str], most: int | None, *, polite: bool) -> None:
        """Append the ids of `pieces` to `ids`. Raises TooManyTokens before a list of millions is
        made, for which the GIL would be held."""
        known = self._kept.find(pieces)
        new = [piece for piece in dict.fromkeys(pieces) if piece not in known]
        encodings = dict(zip(new, self._native(new, polite=polite), strict=True))
        _check(len(ids) + sum(len(known.get(p) or encodings.get(p) or ()) for p in pieces), most)
        for piece, encoding in encodings.items():
            known[piece] = self._meaning(encoding.ids)
            self._kept.keep(piece, known[piece])
        for piece in pieces:
            ids.extend(known[piece])

    def _native(
        self, texts: list[str], *, special: bool = False, polite: bool = False
    ) -> list[Encoding]:
        """What the library makes of each text by itself."""
        encode = partial(self._backend.encode_batch_fast, texts, add_special_tokens=special)
        return _POLITE.submit(encode).result() if polite and texts else encode()


def checked(ids: list[int], most: int | None) -> list[int]:
    """Return `ids`. Raises TooManyTokens where there are more than `most`; None is no limit."""
    _check(len(ids), most)
    return ids


def _check(count: int, most: int | None) -> None:
    if most is not None and count > most:
        raise TooManyTokens(most, count)


def _batches(texts: Iterable[str], most: int) -> Iterator[list[str]]:
    """Neighbours of together `most` characters at the most; what is longer stands alone."""
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
