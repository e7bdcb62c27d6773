"""The tokens of a vocabulary as the bytes of a text that they stand for."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from omlx_server.text.encoding.pieces import byte_of, from_byte_chars

BLANK = "▁"
_FORMS = ("NFC", "NFKC", "NFD", "NFKD")


def is_byte_level(split: Mapping[str, Any] | None) -> bool:
    if split is None:
        return False
    if split["type"] == "Sequence":
        return any(map(is_byte_level, split["pretokenizers"]))
    return bool(split["type"] == "ByteLevel")


def _split(backend: Backend) -> Mapping[str, Any] | None:
    """Describing the whole tokenizer would take long and hold the GIL."""
    splits = backend.pre_tokenizer
    return None if splits is None else json.loads(splits.__getstate__())


def tokens_of(backend: Backend) -> Iterator[bytes]:
    """Return the bytes of each token, without the added tokens. Sentencepiece's mark for a blank
    becomes a blank."""
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if is_byte_level(_split(backend)):
        yield from map(from_byte_chars, vocabulary)
        return
    for token in vocabulary:
        yield byte_of(token) or token.replace(BLANK, " ").encode()


def keeps_letters(backend: Backend) -> bool:
    """Return whether the tokens of a text hold each of its letters unchanged."""
    model, normalizer = backend.model, backend.normalizer
    described = None if normalizer is None else json.loads(normalizer.__getstate__())
    spells = isinstance(model, BPE) and (model.byte_fallback or not model.fuse_unk)
    return spells and forms_of(described) is not None


def forms_of(normalizer: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """Return the Unicode forms that a normalizer makes; None where it does more."""
    if normalizer is None:
        return ()
    kind = normalizer["type"]
    if kind == "Sequence":
        members = [forms_of(member) for member in normalizer["normalizers"]]
        forms_of_members = [forms for forms in members if forms is not None]
        return sum(forms_of_members, ()) if len(forms_of_members) == len(members) else None
    if kind in _FORMS:
        return (kind,)
    marks_blanks = kind == "Replace" and normalizer["pattern"] == {"String": " "}
    keeps = kind == "Prepend" or (marks_blanks and normalizer["content"] == BLANK)
    return () if keeps else None
