"""Rows and constraints for tests of the sampler, and what a naive loop would have sampled."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omlx_server.compute.sampler import SamplingRow
from omlx_server.core.request import RequestId, SamplingParams
from omlx_server.core.step import Join, SequenceId


@dataclass
class Fixed:
    """A constraint with the same mask after each token; it notes what it is told."""

    words: bytes = b""
    told: list[int] = field(default_factory=list)
    done: bool = False
    problem: str | None = None
    too_costly: bool = False
    takes_drafts: bool = True

    def copy(self) -> "Fixed":
        return Fixed(self.words, [*self.told])

    def mask(self) -> bytes:
        return self.words

    def take(self, token: int) -> None:
        self.told.append(token)

    def forced(self) -> Sequence[int]:
        return ()


def row(
    name: str, vocab: int, context: Sequence[int] = (1, 2, 3), prompt: int = 3, **params: Any
) -> SamplingRow:
    """A row of a batch whose context begins with `prompt` tokens of a prompt."""
    sampling = SamplingParams(max_tokens=500, **params)
    return SamplingRow.of(
        Join(SequenceId(RequestId(name), 0), tuple(context), prompt, sampling), vocab
    )
