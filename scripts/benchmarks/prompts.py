"""Prompts of an exact length in tokens, with the model's own chat template.

Those of `make` differ from their third word on, so no cache of any server helps; those for the
cache start with what they are told. The same seed gives the same prompts. The words ask for a long
answer, so that greedy text rarely ends early.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from omlx_server.cli.bench.words import TASK, VOCABULARY
from omlx_server.core.blocks.keys import shared
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer
from scripts.benchmarks.workload import Message, Prompt

_FILLERS = (" a", ".", "a")

# About eight tokens each; no two start with the same letter, so they share no token at all.
QUESTIONS = (
    "How does a river reach the sea?",
    "Why do birds fly south in winter?",
    "Is it hard to be a good doctor?",
    "Tell me, how is paper made?",
    "May anybody live in a castle?",
    "Explain what thunder is to a child.",
    "Describe a day in a small village.",
    "Can you name and explain the seasons?",
)


class PromptMaker:
    """Makes prompts for one model."""

    def __init__(self, model: Path) -> None:
        self._words = VOCABULARY.split()
        self._template = ChatTemplate(Tokenizer.load(model))

    def make(self, count: int, tokens: int, seed: str) -> tuple[Prompt, ...]:
        """`count` different prompts of `tokens` tokens each."""
        return tuple(self._one(tokens, random.Random(f"{seed}/{i}")) for i in range(count))

    def document(self, tokens: int, start: str, question: str) -> Prompt:
        """A system message that begins with `start`, and a question."""
        words = self._draw(tokens, random.Random(start))
        return self._fitted(tokens, words, lambda text: self._asked(f"{start} {text}", question))

    def about(self, prompt: Prompt, question: str) -> Prompt:
        """Another question on the same document."""
        return self._asked(prompt.messages[0]["content"], question)

    def diverge(self, prompt: Prompt, tokens: int, question: str) -> Prompt:
        """As long as `prompt`, a document; the two share at most `tokens` tokens, and nearly so."""
        words = prompt.messages[0]["content"].split()
        kept = _most(
            len(words),
            lambda n: shared(self._about(words[:n]).tokens, prompt.tokens) <= tokens,
        )
        start = " ".join(words[:kept])
        other = self._draw(len(prompt.tokens), random.Random(f"not {start}"))
        # Capitals are other tokens than the words of any document.
        other[0] = other[0].upper()
        return self._fitted(
            len(prompt.tokens), other, lambda text: self._asked(f"{start} {text}", question)
        )

    def turn(self, history: Sequence[Message], tokens: int, seed: str, question: str) -> Prompt:
        """What was said, and a message that makes it `tokens` tokens long and asks something."""
        words = self._draw(tokens, random.Random(seed))
        return self._fitted(
            tokens, words, lambda text: self._prompt(*history, _user(f"{text} {question}"))
        )

    def _one(self, tokens: int, source: random.Random) -> Prompt:
        system = " ".join(source.choices(self._words, k=2))
        words = self._draw(tokens, source)
        return self._fitted(tokens, words, lambda text: self._asked(system, f"{TASK} {text}"))

    def _fitted(self, tokens: int, words: Sequence[str], build: Callable[[str], Prompt]) -> Prompt:
        """Of these words the most that fit, and small fillers until the length is exact."""
        count = _most(len(words), lambda n: len(build(" ".join(words[:n])).tokens) <= tokens)
        text = " ".join(words[:count])
        prompt = build(text)
        while len(prompt.tokens) != tokens:
            longer = [text + filler for filler in _FILLERS]
            fitting = [t for t in longer if len(prompt.tokens) < len(build(t).tokens) <= tokens]
            if not fitting:
                raise ValueError(f"no prompt of {tokens} tokens can be made for this tokenizer")
            text = fitting[0]
            prompt = build(text)
        return prompt

    def _draw(self, count: int, source: random.Random) -> list[str]:
        return source.choices(self._words, k=count)

    def _about(self, words: Sequence[str]) -> Prompt:
        return self._asked(" ".join(words), "")

    def _asked(self, system: str, text: str) -> Prompt:
        return self._prompt({"role": "system", "content": system}, _user(text))

    def _prompt(self, *messages: Message) -> Prompt:
        return Prompt(messages, tuple(self._template.encode(messages)))


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `limit` that fits, when every smaller one does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
