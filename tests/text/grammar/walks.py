"""Answers made by chance: any token that the mask allows, with a liking for those that end."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator
from numpy.typing import NDArray

from omlx_server.core.request import Constraint
from omlx_server.text.grammar.vocabulary import Vocabulary
from omlx_server.text.tokenizer import Tokenizer

# Inside a string nothing but the first ends it.
CLOSING = ['"', "}", "]", ",", ":", "@", "0", "5", "1", "a", "b", "<"]


@dataclass(frozen=True)
class Words:
    """A tokenizer and its vocabulary."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary

    @cached_property
    def closing(self) -> list[int]:
        return [self.tokenizer.encode(text)[0] for text in CLOSING]

    def text(self, tokens: Sequence[int]) -> str:
        """Fails where an answer is not UTF-8."""
        ends = self.vocabulary.eos_ids
        spelled = [self.tokenizer.token_bytes(token) for token in tokens if token not in ends]
        return b"".join(spelled).decode()

    def spell(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, special=False)

    def special(self, text: str) -> int:
        token = self.vocabulary.special_id(text)
        assert token is not None
        return token


def allowed(constraint: Constraint) -> list[int]:
    return [int(token) for token in np.flatnonzero(_bits(constraint))]


def _bits(constraint: Constraint) -> NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(constraint.mask(), np.uint8), bitorder="little")


def walk(constraint: Constraint, words: Words, seed: int, free: int = 30, most: int = 500) -> str:
    """The text of a whole answer: `free` tokens at random, then the shortest way out."""
    return words.text(walked(constraint, words, seed, free, most))


def walked(
    constraint: Constraint, words: Words, seed: int, free: int = 30, most: int = 500
) -> list[int]:
    chance = random.Random(seed)
    tokens: list[int] = []
    for step in range(most):
        token = _choose(_bits(constraint), words, chance, hurry=step >= free)
        tokens.append(token)
        constraint.take(token)
        assert constraint.problem is None, (constraint.problem, words.text(tokens))
        if token in words.vocabulary.eos_ids:
            return tokens
    raise AssertionError(f"no end after {most} tokens: {tokens[-40:]}")


def _choose(bits: NDArray[np.uint8], words: Words, chance: random.Random, *, hurry: bool) -> int:
    if hurry or chance.random() < 0.3:
        preferred = [token for token in words.closing if bits[token]]
        for token in (*words.vocabulary.eos_ids, words.closing[0]):
            if bits[token]:
                return token
        if preferred:
            return chance.choice(preferred)
    return int(chance.choice(np.flatnonzero(bits)))


def validate(schema: Any, value: Any) -> None:
    """Fails where `value` does not satisfy `schema`, as others than the engine see it."""
    Draft202012Validator(schema).validate(value)


def accepts(constraint: Constraint, words: Words, text: str) -> bool:
    """Whether `text` is a whole answer."""
    state = constraint.copy()
    # Character by character: the engine takes them also where its mask wants a longer token.
    for char in text:
        for token in words.spell(char):
            state.take(token)
    if state.problem is not None:
        return False
    return bool(set(allowed(state)) & set(words.vocabulary.eos_ids))
