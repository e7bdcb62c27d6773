"""The tokens of a vocabulary as the bytes of a text that they stand for. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer as Backend

from omlx_server.text.encoding.pieces import byte_of, from_byte_chars

BLANK = "▁"


def is_byte_level(split: Mapping[str, Any] | None) -> bool:
    """Whether a pre-tokenizer writes the bytes of a text as stand-in characters (GPT-2's table)."""
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
    """The bytes of each token of the vocabulary, without the added tokens. Sentencepiece's mark for
    a blank becomes a blank."""
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if is_byte_level(_split(backend)):
        yield from map(from_byte_chars, vocabulary)
        return
    for token in vocabulary:
        yield byte_of(token) or token.replace(BLANK, " ").encode()
