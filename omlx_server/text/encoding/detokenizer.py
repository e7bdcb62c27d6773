"""Turns token ids into text, one token at a time. Owned by one choice, on the asyncio thread.

Invariants: `add` never returns part of a character; all that `add` and `finish` returned, joined,
is `tokenizer.decode` of all ids.
"""

from collections.abc import Collection
from encodings.utf_8 import IncrementalDecoder

from omlx_server.text.encoding.pieces import Piece, Pieces


class Detokenizer:
    """`started`: a text has begun, so the first token keeps its leading space. `shown`: ids of
    special tokens to show."""

    def __init__(
        self, pieces: Pieces, *, started: bool = False, shown: Collection[int] = ()
    ) -> None:
        self._pieces = pieces
        self._shown = shown
        self._decoder = IncrementalDecoder("replace")
        self._started = started

    def add(self, token_id: int) -> str:
        """Return the text that is certain now."""
        return self.join(self.take(token_id))

    def take(self, token_id: int) -> Piece | None:
        """Return the piece of the next token, for `join`; None when it shows nothing."""
        if token_id in self._shown:
            piece: Piece | None = self._pieces.raw(token_id).decode()
        elif self._started:
            return self._pieces.piece(token_id)
        else:
            piece = self._pieces.first(token_id)
        self._started = self._started or piece is not None
        return piece

    def join(self, piece: Piece | None) -> str:
        if piece is None:
            return ""
        if isinstance(piece, bytes):
            if piece.isascii() and not self._decoder.buffer:  # as most are
                return piece.decode()
            return self._decoder.decode(piece)
        return self._decoder.decode(b"", final=True) + piece

    def finish(self) -> str:
        """Return the rest: U+FFFD where bytes of a character are missing, else ""."""
        return self._decoder.decode(b"", final=True)
