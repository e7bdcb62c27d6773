"""Rows for tests of the sampler, and what a naive loop would have sampled for them."""

from collections.abc import Sequence
from typing import Any

from omlx_server.compute.sampler import Row
from omlx_server.core.request import RequestId, SamplingParams
from omlx_server.core.step import Join, SequenceId


def row(
    name: str, vocab: int, context: Sequence[int] = (1, 2, 3), prompt: int = 3, **params: Any
) -> Row:
    """A row of a batch whose context begins with `prompt` tokens of a prompt."""
    sampling = SamplingParams(max_tokens=500, **params)
    return Row.of(Join(SequenceId(RequestId(name), 0), tuple(context), prompt, sampling), vocab)
