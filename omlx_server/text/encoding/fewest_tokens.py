"""A lower bound of a text's tokens, found without encoding it. Immutable; any thread.

A token holds at most so many letters, so many blanks, so many "e"s, so a text with more of one kind
needs more tokens. Kinds count apart, because one token may be a long run of blanks. For a tokenizer
that may lose something of a text only what is certain is counted; that can be 0.
"""

import json
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import add
from typing import Any

from tokenizers import Tokenizer as Backend

from omlx_server.errors import TooManyTokens
from omlx_server.text.encoding.pieces import byte_chars
from omlx_server.text.encoding.vocabulary import BLANK, forms_of, is_byte_level, tokens_of

_ALL = bytes(range(256))
_BLANKS = bytes(byte for byte in range(128) if chr(byte).isspace())
_HIGH = bytes(range(128, 256))
_LETTERS = string.ascii_letters.encode()
_DIGITS = string.digits.encode()
_CLASSES = (
    _ALL,
    _LETTERS,
    _DIGITS,
    _BLANKS,
    _HIGH,
    bytes(sorted(set(_ALL) - set(_HIGH + _LETTERS + _DIGITS + _BLANKS))),
)
_IN_UTF8 = bytes(byte for byte in _ALL if byte not in (0xC0, 0xC1) and byte < 0xF5)
# What a combining mark behind it can make another character of.
_COMPOSED = _HIGH + _LETTERS + b"<=>"
_SAMPLE = 4096
_SLICE, _OVERLAP = 1 << 16, 64


class TokenFloor:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def prepare(self) -> None:
        """Look at all tokens of the vocabulary, before the first text comes."""
        _ = self._view

    def check(self, text: str, most: int | None) -> None:
        """Raises TooManyTokens where `text` certainly has more than `most` tokens; None is no
        limit."""
        if most is None or len(text) <= most:
            return
        least = self.tokens(text)
        if least > most:
            raise TooManyTokens(most, least)

    def most_chars(self, tokens: int) -> int | None:
        """Return the number of characters above which a text certainly has more than `tokens`
        tokens; None where nothing is certain."""
        view = self._view
        certain = view is not None and not set(view.blind) & set(_IN_UTF8)
        return tokens * view.classes[0][1] if view is not None and certain else None

    def tokens(self, text: str) -> int:
        """Return a number of tokens that `text` has at least. Takes some milliseconds for a
        megabyte."""
        view = self._view
        if view is None:
            return 0
        unseen, common = view.unseen(text), _common(text)
        sums = [0] * (len(view.classes) + len(common))
        for start in range(0, len(text), _SLICE):  # the whole at once would hold the GIL
            some = text[start : start + _SLICE]
            data = some if view.byte_level else some.replace(BLANK, " ")
            seen = data.encode(errors="replace").translate(None, unseen)
            counts = [len(seen.translate(None, others)) for others, _ in view.classes]
            counts += map(seen.count, common)
            sums = [*map(add, sums, counts)]
        mosts = [*(most for _, most in view.classes), *(view.singles[byte] for byte in common)]
        return max(-(-count // most) for count, most in zip(sums, mosts, strict=True) if most)

    @cached_property
    def _view(self) -> "_View | None":
        description = json.loads(self._backend.to_str())
        byte_level = is_byte_level(description["pre_tokenizer"])
        forms = forms_of(description["normalizer"])
        unspelled = _unspelled(description["model"], byte_level=byte_level)
        if forms is None or unspelled == _ALL or not _splits_only(description["pre_tokenizer"]):
            return None
        added = list(self._backend.get_added_tokens_decoder().values())
        tokens = [*tokens_of(self._backend), *(token.content.encode() for token in added)]
        swallows = any(token.lstrip or token.rstrip for token in added)
        return _View(
            byte_level=byte_level,
            forms=forms,
            blind=unspelled + (_BLANKS + _HIGH if swallows else b""),
            classes=tuple((_without(wanted), _most(tokens, wanted)) for wanted in _CLASSES),
            singles=_most_of_each(tokens),
        )


@dataclass(frozen=True, slots=True)
class _View:
    """`classes`: pairs of (all other bytes, the most of these in one token). `forms`: the
    Unicode forms that texts are brought into first. `blind`: bytes that a token can swallow any
    number of."""

    byte_level: bool
    forms: tuple[str, ...]
    blind: bytes
    classes: tuple[tuple[bytes, int], ...]
    singles: Mapping[int, int]

    def unseen(self, text: str) -> bytes:
        stays = text.isascii() or all(_is_in_form(form, text) for form in self.forms)
        return self.blind if stays else bytes({*self.blind, *_COMPOSED})


def _common(text: str) -> list[int]:
    sample = text[:: max(1, len(text) // _SAMPLE)].encode(errors="replace")
    return [byte for byte, count in Counter(sample).items() if count * 8 >= len(sample)]


def _is_in_form(form: Any, text: str) -> bool:
    """Check in slices, since some texts take long and hold the GIL."""
    starts = range(0, len(text), _SLICE)
    return all(
        unicodedata.is_normalized(form, text[max(0, start - _OVERLAP) : start + _SLICE])
        for start in starts
    )


def _without(wanted: bytes) -> bytes:
    return bytes(sorted(set(_ALL) - set(wanted)))


def _most(tokens: Iterable[bytes], wanted: bytes) -> int:
    others = _without(wanted)
    return max((len(token.translate(None, others)) for token in tokens), default=0)


def _most_of_each(tokens: Iterable[bytes]) -> Mapping[int, int]:
    most = dict.fromkeys(range(256), 1)
    for token in tokens:
        if len(token) > 1:
            for byte in set(token):
                most[byte] = max(most[byte], token.count(byte))
    return most


# --- Which bytes of a text are in some token ------------------------------------------------------


def _splits_only(split: Mapping[str, Any] | None) -> bool:
    if split is None or split["type"] in ("ByteLevel", "Digits", "Metaspace"):
        return True
    if split["type"] == "Sequence":
        return all(map(_splits_only, split["pretokenizers"]))
    return split["type"] in ("Split", "Punctuation") and split["behavior"] != "Removed"


def _unspelled(model: Mapping[str, Any], *, byte_level: bool) -> bytes:
    """Return the bytes without a token of their own: any number of them can be one unknown
    token."""
    if any(model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix")):
        return _ALL
    if model["type"] == "BPE" and byte_level:
        vocabulary, names = set(model["vocab"]), byte_chars()
    elif model["type"] in ("BPE", "Unigram") and model.get("byte_fallback"):
        unigram = model["type"] == "Unigram"
        vocabulary = {one[0] for one in model["vocab"]} if unigram else set(model["vocab"])
        names = {byte: f"<0x{byte:02X}>" for byte in range(256)}
    else:
        return _ALL
    return bytes(byte for byte in _ALL if names[byte] not in vocabulary)
