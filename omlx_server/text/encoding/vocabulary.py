"""The tokens of a vocabulary as the bytes of a text that they stand for."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from omlx_server.text.encoding.pieces import byte_of_token, bytes_of_token

_BLANK = "▁"
_FORMS = ("NFC", "NFKC", "NFD", "NFKD")


def _is_byte_level(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return False
    if pre_tokenizer["type"] == "Sequence":
        return any(map(_is_byte_level, pre_tokenizer["pretokenizers"]))
    return bool(pre_tokenizer["type"] == "ByteLevel")


def _described_pre_tokenizer(backend: Backend) -> Mapping[str, Any] | None:
    """Describing the whole tokenizer would take long and hold the GIL."""
    pre_tokenizer = backend.pre_tokenizer
    return None if pre_tokenizer is None else json.loads(pre_tokenizer.__getstate__())


def tokens_of(backend: Backend) -> Iterator[bytes]:
    """Return the bytes of each token, without the added tokens. Sentencepiece's mark for a blank
    becomes a blank."""
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if _is_byte_level(_described_pre_tokenizer(backend)):
        yield from map(bytes_of_token, vocabulary)
        return
    for token in vocabulary:
        yield byte_of_token(token) or token.replace(_BLANK, " ").encode()


def keeps_letters(backend: Backend) -> bool:
    """Return whether the tokens of a text hold each of its letters unchanged."""
    model, normalizer = backend.model, backend.normalizer
    described = None if normalizer is None else json.loads(normalizer.__getstate__())
    spells_all = isinstance(model, BPE) and (model.byte_fallback or not model.fuse_unk)
    return spells_all and _keeps_text(described)


def _keeps_text(normalizer: Mapping[str, Any] | None) -> bool:
    """Return whether a normalizer only chooses a Unicode form and marks blanks."""
    if normalizer is None:
        return True
    kind = normalizer["type"]
    if kind == "Sequence":
        return all(map(_keeps_text, normalizer["normalizers"]))
    marks_blanks = kind == "Replace" and normalizer["pattern"] == {"String": " "}
    return kind in (*_FORMS, "Prepend") or (marks_blanks and normalizer["content"] == _BLANK)
