"""Prompts of about a length in tokens. Each starts with its own random word, so no cache helps."""

import random
import secrets
from dataclasses import dataclass

VOCABULARY = (
    "river stone winter garden letter silver window market bridge doctor summer forest island "
    "engine music paper candle mountain harbour orange kitchen sister teacher village thunder "
    "pocket mirror valley copper blanket sailor pencil meadow basket lantern feather castle "
    "shadow ticket planet velvet hammer cousin button desert ribbon kettle saddle anchor dragon"
)
TASK = "Write a very long story about a traveller. All of these words must be in it:"
Message = dict[str, str]
_WORDS = VOCABULARY.split()


@dataclass(frozen=True, slots=True)
class Scale:
    """The tokens of a prompt by its words: about `fixed + per_word * words`."""

    fixed: float = 60.0
    per_word: float = 1.3

    def words(self, tokens: int) -> int:
        return max(1, round((tokens - self.fixed) / self.per_word))


def scale_of(few: int, tokens_of_few: int, many: int, tokens_of_many: int) -> Scale:
    """Return the scale by two prompts with counted tokens, or the default one."""
    per_word = (tokens_of_many - tokens_of_few) / (many - few)
    if per_word <= 0:
        return Scale()
    return Scale(tokens_of_few - per_word * few, per_word)


def user_message(text: str) -> Message:
    return {"role": "user", "content": text}


def new_prompt(words: int) -> list[Message]:
    return [user_message(f"{secrets.token_hex(8)} {TASK} {random_words(words)}")]


def random_words(count: int) -> str:
    return " ".join(random.Random(secrets.token_bytes(8)).choices(_WORDS, k=count))
