"""The text of each token id: bytes that may be part of a character, or whole text. A
detokenizer joins them. Any thread.

Only the first token of a text (sentencepiece drops its leading space) and runs of bytes depend on
the place.
"""

import json
import re
from collections.abc import Collection, Iterator
from encodings.utf_8 import IncrementalDecoder
from functools import cache
from typing import Any

from tokenizers import Tokenizer as Backend

Piece = bytes | str

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def byte_chars() -> dict[int, str]:
    """Return the printable stand-in of every byte (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + position) for position, byte in enumerate(others)
    }


@cache
def _byte_of_char() -> dict[int, int]:
    return {ord(char): byte for byte, char in byte_chars().items()}


def bytes_of_token(token: str) -> bytes:
    """Return the bytes of a byte-level token. A character outside GPT-2's table stands for its
    UTF-8."""
    table = _byte_of_char()
    is_of_bytes = table.keys() >= set(map(ord, token))
    return token.translate(table).encode("latin-1") if is_of_bytes else token.encode()


def byte_of_token(token: str) -> bytes | None:
    """Return the byte that a token such as `<0x0A>` stands for, or None."""
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else None


class Pieces:
    """The pieces of one tokenizer. `hidden` ids (special tokens) show nothing."""

    def __init__(self, backend: Backend) -> None:
        decoder = json.loads(backend.to_str())["decoder"]
        types = frozenset(_decoder_types(decoder))
        self._backend = backend
        self.byte_level = "ByteLevel" in types and types <= {"ByteLevel", "Fuse", "Sequence"}
        self._byte_fallback = "ByteFallback" in types
        added = backend.get_added_tokens_decoder()
        self.hidden = frozenset(token_id for token_id, token in added.items() if token.special)
        self._anchor = None if self.byte_level else self._find_anchor()
        self._known_pieces: dict[int, Piece | None] = {}

    def piece(self, token_id: int) -> Piece | None:
        """Return what the token adds except at the start of a text; None when it shows nothing."""
        try:
            return self._known_pieces[token_id]
        except KeyError:
            piece = self._known_pieces[token_id] = self._find_piece(token_id)
            return piece

    def first(self, token_id: int) -> Piece | None:
        """Return what the token adds at the start of a text."""
        piece = self.piece(token_id)
        if piece is None or self.byte_level or (isinstance(piece, bytes) and not piece.isascii()):
            return piece
        return self._backend.decode([token_id], skip_special_tokens=False)

    def raw(self, token_id: int) -> bytes:
        """Return the bytes of one token alone; a special token gives its text."""
        piece = self.piece(token_id)
        if piece is None:
            return (self._backend.id_to_token(token_id) or "").encode()
        return piece if isinstance(piece, bytes) else piece.encode()

    def _find_piece(self, token_id: int) -> Piece | None:
        token = self._backend.id_to_token(token_id)
        if token is None or token_id in self.hidden:
            return None
        if self.byte_level:
            return bytes_of_token(token)
        byte = byte_of_token(token) if self._byte_fallback else None
        return self._after_anchor(token_id) if byte is None else byte

    def _after_anchor(self, token_id: int) -> str:
        """Decode a token behind an ordinary one, the anchor, so that its space stays."""
        if self._anchor is None:
            return self._backend.decode([token_id], skip_special_tokens=False)
        anchor = self._backend.decode([self._anchor], skip_special_tokens=False)
        both = self._backend.decode([self._anchor, token_id], skip_special_tokens=False)
        return both[len(anchor) :]

    def _find_anchor(self) -> int | None:
        for token, token_id in sorted(self._backend.get_vocab().items(), key=lambda item: item[1]):
            if token_id not in self.hidden and token.isascii() and token.isalpha():
                return token_id
        return None


def _decoder_types(decoder: dict[str, Any] | None) -> Iterator[str]:
    if decoder is not None:
        yield decoder["type"]
        for member in decoder.get("decoders", ()):
            yield from _decoder_types(member)


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
