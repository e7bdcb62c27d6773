"""One answer of a server: its times, its text, and how much of its prompt came from a cache. Pure.

A server that does not tell of its cache has `cached` None, and then nothing that follows from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from omlx_server.cli.bench.target import Stream
from omlx_server.core.blocks.keys import shared
from scripts.benchmarks.workload import Prompt

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one prompt."""

    prompt: Prompt
    stream: Stream
    text: str = ""
    cached: int | None = None

    @property
    def computed(self) -> int | None:
        """Tokens of the prompt that the server had to compute."""
        return None if self.cached is None else len(self.prompt.tokens) - self.cached

    @property
    def decode_step(self) -> float | None:
        """The median time from one piece of text to the next; None without two pieces."""
        steps = [after - before for before, after in pairwise(self.stream.times)]
        return median(steps) if steps else None


def computed(answers: Sequence[Answer]) -> int | None:
    """Prompt tokens that were computed for all of these."""
    known = [answer.computed for answer in answers if answer.computed is not None]
    return sum(known) if len(known) == len(answers) else None


def distinct(prompts: Sequence[Tokens]) -> int:
    """Tokens to compute when whatever starts alike is computed once."""
    ordered = sorted(prompts)  # puts each next to the one that it shares most with
    return len(ordered[0]) + sum(
        len(after) - shared(before, after) for before, after in pairwise(ordered)
    )
