"""The tokens of a vocabulary as the bytes of a text that they stand for. Pure."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer as Backend

from omlx_server.text.encoding.pieces import byte_chars

BLANK = "▁"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def is_byte_level(split: Mapping[str, Any] | None) -> bool:
    """Whether a pre-tokenizer writes a text in stand-ins for its bytes (GPT-2's table)."""
    if split is None:
        return False
    if split["type"] == "Sequence":
        return any(map(is_byte_level, split["pretokenizers"]))
    return bool(split["type"] == "ByteLevel")


def _split(backend: Backend) -> Mapping[str, Any] | None:
    """The pre-tokenizer's description. All of a tokenizer's takes long, and holds the GIL."""
    splits = backend.pre_tokenizer
    return None if splits is None else json.loads(splits.__getstate__())


def tokens_of(backend: Backend) -> Iterator[bytes]:
    """Those that are not added ones. Sentencepiece's mark for a blank is a blank."""
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if is_byte_level(_split(backend)):
        stand_ins = {char: byte for byte, char in byte_chars().items()}
        known, table = stand_ins.keys(), {ord(char): byte for char, byte in stand_ins.items()}
        for token in vocabulary:
            stands_for = known >= set(token)
            yield token.translate(table).encode("latin-1") if stands_for else token.encode()
        return
    for token in vocabulary:
        byte = _BYTE.fullmatch(token)
        yield bytes([int(byte[1], 16)]) if byte else token.replace(BLANK, " ").encode()
