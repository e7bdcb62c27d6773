"""The tokens of one model in the form of the grammar engine. Any thread.

A grammar reaches control tokens by name or id only. Ids that stand for nothing are never allowed.
"""

import json
from functools import cached_property
from threading import Lock
from weakref import ref

from llguidance import LLTokenizer, TokenizerWrapper

from omlx_server.text.tokenizer import Tokenizer

# Sentencepiece puts its space before this character, with which it is cut off again.
_ANCHOR = "\x02"


class Vocabulary:
    """`size`: the width of the model's logits, which can differ from the tokenizer's size."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self.size = size
        self.eos_ids = sorted(token for token in tokenizer.eos_ids if token < size)
        self._tokenizer = tokenizer
        self._lock = Lock()
        self.made: LLTokenizer | None = None  # the engine's form, once `engine` was asked for

    @cached_property
    def special_ids(self) -> frozenset[int]:
        controls = {self._tokenizer.token_id(text) for text in self._tokenizer.special_texts}
        ids = {*self._tokenizer.hidden_ids, *controls, *self.eos_ids}
        return frozenset(token for token in ids if token is not None and token < self.size)

    def special_id(self, text: str) -> int | None:
        token = self._tokenizer.token_id(text)
        return token if token in self.special_ids else None

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token; empty for an id that stands for nothing."""
        return self._tokenizer.token_bytes(token) if token < self._tokenizer.vocab_size else b""

    @property
    def engine(self) -> LLTokenizer:
        """The engine's form, made on first use in a few tenths of a second."""
        with self._lock:
            if self.made is None:
                speller = _Speller(self, self._tokenizer)
                self.made = LLTokenizer(speller, eos_token=self.eos_ids)
                speller.tokens = []  # the engine has its own copy
            return self.made

    def tokens(self) -> list[bytes]:
        size = min(self._tokenizer.vocab_size, self.size)
        tokens = [self._tokenizer.token_bytes(token) for token in range(size)]
        return tokens + [b""] * (self.size - size)

    def described(self) -> bytes:
        """One line of JSON from which `trial.py` makes the same vocabulary."""
        described = {
            "tokens": [token.decode("latin-1") for token in self.tokens()],
            "special": sorted(self.special_ids),
            "eos": self.eos_ids,
        }
        return json.dumps(described).encode() + b"\n"


class _Speller(TokenizerWrapper):
    """Spells forced text with the model's own tokenizer. It must not hold the engine, or neither
    is collected."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = None
        self.tokens = vocabulary.tokens()
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.is_tokenizer_wrapper = True
        self._tokenizer = tokenizer
        self._size = vocabulary.size
        self._vocabulary = ref(vocabulary)

    def __call__(self, text: str) -> list[int]:
        for ids in (self._encode(text), self._encode_behind_anchor(text)):
            if self._bytes_of(ids) == text.encode():
                return ids
        vocabulary = self._vocabulary()
        engine = vocabulary.made if vocabulary else None
        return engine.greedy_tokenize(text) if engine else []

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False)

    def _encode_behind_anchor(self, text: str) -> list[int]:
        """Encode as in the middle of a text, where sentencepiece adds no space."""
        ids = self._encode(_ANCHOR + text)
        for count in range(1, min(len(ids), 4)):
            if self._bytes_of(ids[:count]).endswith(_ANCHOR.encode()):
                return ids[count:]
        return []

    def _bytes_of(self, ids: list[int]) -> bytes:
        if any(token >= self._size for token in ids):
            return b""
        return b"".join(self._tokenizer.token_bytes(token) for token in ids)
