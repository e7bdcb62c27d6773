"""Turns a text into token ids while other threads go on. Immutable; any thread.

The library holds the GIL for as long as `encode` takes, and releases it in `encode_batch_fast`,
which is used here. Encoding a text needs more than a hundred times its size in memory: so a long
text is encoded piece by piece, and no further than to the most tokens that are wanted.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from omlx_server.errors import TooManyTokens
from omlx_server.text.encoding.low_priority import be_polite
from omlx_server.text.encoding.seams import Seams
from omlx_server.text.encoding.vocabulary import tokens_of

# The library's own threads would be shared: a short text would wait behind the longest ones.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

PIECE = 1 << 16
"""In characters: a longer text is encoded in pieces, each cut at the first seam after so many."""

# Long texts are encoded on threads of low priority. Only the library's own work runs there, for
# which it releases the GIL: a thread of low priority that waited for a processor while it holds the
# GIL would stop all others, and a thread can't raise its priority again. There are as many threads
# as prompts are encoded at a time (api/text_threads.py), so none waits for the piece of another.
_POLITE = ThreadPoolExecutor(
    6, thread_name_prefix="encoding", initializer=be_polite, initargs=(10,)
)


class PieceEncoder:
    """Encodes texts of more than `piece` characters piece by piece."""

    def __init__(self, backend: Backend, piece: int = PIECE) -> None:
        self._backend = backend
        self._piece = piece

    def prepare(self) -> None:
        """Find where long texts can be cut, before the first one comes."""
        _ = self._seams

    @cached_property
    def _seams(self) -> Seams:
        tokens = (token.decode("latin-1") for token in tokens_of(self._backend))
        return Seams(self._backend, tokens, size=self._piece)

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        """What the model has before and behind every text of its own."""
        bare, framed = self._native("a").ids, self._native("a", special=True).ids
        start = next(i for i in range(len(framed)) if framed[i : i + len(bare)] == bare)
        return framed[:start], framed[start + len(bare) :]

    def ids(self, text: str, most: int | None = None, *, special: bool = False) -> list[int]:
        """The token ids of `text`; with `special`, also those that the model puts around every
        text.

        Raises:
            TooManyTokens: there are more than `most`.
        """
        if special and len(text) <= self._piece:
            return _joined([], self._native(text, special=True), most)
        before, behind = self._frame if special else ([], [])
        ids = list(before)
        for piece in self._pieces(text):
            ids = _joined(ids, self._native(piece), most)
        return checked(ids + behind, most)

    def beginning(self, text: str, count: int) -> list[int]:
        """The ids of the text's first pieces: at least `count`, if the text has as many. Later
        pieces are not looked at."""
        ids: list[int] = []
        for piece in self._pieces(text):
            ids += self._native(piece).ids
            if len(ids) >= count:
                break
        return ids

    def counts(self, texts: Sequence[str], most: int) -> list[int]:
        """The number of tokens of each text by itself; `most` + 1 for each text that has more."""
        found: list[int] = []
        for batch in _batches(texts, self._piece):
            if len(batch) > 1:
                found += (min(len(one), most + 1) for one in self._encoded(batch))
            else:
                found.append(self._count(batch[0], most))
        return found

    def _count(self, text: str, most: int) -> int:
        try:
            return len(self.ids(text, most))
        except TooManyTokens:
            return most + 1

    def _pieces(self, text: str) -> Iterable[str]:
        return (text,) if len(text) <= self._piece else self._seams.pieces(text)

    def _native(self, text: str, *, special: bool = False) -> Encoding:
        return self._encoded([text], special=special)[0]

    def _encoded(self, texts: list[str], *, special: bool = False) -> list[Encoding]:
        encode = partial(self._backend.encode_batch_fast, texts, add_special_tokens=special)
        return encode() if sum(map(len, texts)) < PIECE else _POLITE.submit(encode).result()


def checked(ids: list[int], most: int | None) -> list[int]:
    """Return `ids`. Raises TooManyTokens where there are more than `most`; None is no limit."""
    _check(len(ids), most)
    return ids


def _joined(ids: list[int], more: Encoding, most: int | None) -> list[int]:
    """Both, in the list of the first. Raises TooManyTokens before a list of millions is made, for
    which the GIL would be held."""
    _check(len(ids) + len(more), most)
    ids += more.ids
    return ids


def _check(count: int, most: int | None) -> None:
    if most is not None and count > most:
        raise TooManyTokens(most, count)


def _batches(texts: Sequence[str], most: int) -> Iterator[list[str]]:
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
