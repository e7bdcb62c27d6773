"""Prompts of an exact length in tokens, with the model's own chat template.

Every prompt differs from its third word on, so no cache of any server helps; and the same seed
gives the same prompts. The words ask for a long answer, so that greedy text rarely ends early.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from omlx_server.text.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer
from scripts.benchmarks.workload import Prompt

_VOCABULARY = (
    "river stone winter garden letter silver window market bridge doctor summer forest island "
    "engine music paper candle mountain harbour orange kitchen sister teacher village thunder "
    "pocket mirror valley copper blanket sailor pencil meadow basket lantern feather castle "
    "shadow ticket planet velvet hammer cousin button desert ribbon kettle saddle anchor dragon"
)
_TASK = "Write a very long story about a traveller. All of these words must be in it:"
_FILLERS = (" a", ".", "a")


class PromptMaker:
    """Makes prompts for one model."""

    def __init__(self, model: Path) -> None:
        self._words = _VOCABULARY.split()
        self._template = ChatTemplate(Tokenizer.load(model))

    def make(self, count: int, tokens: int, seed: str) -> tuple[Prompt, ...]:
        """`count` different prompts of `tokens` tokens each."""
        return tuple(self._one(tokens, random.Random(f"{seed}/{i}")) for i in range(count))

    def _one(self, tokens: int, source: random.Random) -> Prompt:
        system = " ".join(source.choices(self._words, k=2))
        words = source.choices(self._words, k=tokens)
        low, high = 0, len(words)
        while low < high:  # the most words that fit
            middle = (low + high + 1) // 2
            fits = len(self._prompt(system, _text(words[:middle])).tokens) <= tokens
            low, high = (middle, high) if fits else (low, middle - 1)
        return self._filled(system, _text(words[:low]), tokens)

    def _filled(self, system: str, text: str, tokens: int) -> Prompt:
        """Append small fillers until the length is exact."""
        prompt = self._prompt(system, text)
        while len(prompt.tokens) != tokens:
            longer = [self._prompt(system, text + filler) for filler in _FILLERS]
            fitting = [p for p in longer if len(prompt.tokens) < len(p.tokens) <= tokens]
            if not fitting:
                raise ValueError(f"no prompt of {tokens} tokens can be made for this tokenizer")
            prompt = fitting[0]
            text = prompt.messages[-1]["content"]
        return prompt

    def _prompt(self, system: str, text: str) -> Prompt:
        messages = ({"role": "system", "content": system}, {"role": "user", "content": text})
        return Prompt(messages, tuple(self._template.encode(messages)))


def _text(words: Sequence[str]) -> str:
    return " ".join([_TASK, *words])
