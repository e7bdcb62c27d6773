"""A model that makes vectors of texts. Owned by the mlx thread; speaks token ids only.

Work is handed out slice by slice: each turn of the iterator computes as much as `pace` says, so
that whoever turns it can do other work in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.embed.batch import Batch, Work
from omlx_server.compute.embed.body import Body, Head
from omlx_server.compute.embed.pace import Pace
from omlx_server.compute.embed.pooling import Pooling
from omlx_server.core.encoded import Encoded
from omlx_server.core.memory.room import Boundless, Room
from omlx_server.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """What inputs a model takes. `pad_id` fills up short ones."""

    vocab: int
    max_tokens: int
    pad_id: int

    def check(self, inputs: Sequence[Encoded], param: str) -> None:
        """Raises BadRequest. An id beyond the vocabulary would read foreign memory."""
        for index, one in enumerate(inputs):
            if not one.ids:
                raise BadRequest(f"input {index} has no tokens", param=param)
            if len(one) > self.max_tokens:
                raise BadRequest(
                    f"input {index} has {len(one)} tokens, the model reads {self.max_tokens}",
                    param=param,
                )
            if min(one.ids) < 0 or max(one.ids) >= self.vocab:
                raise BadRequest(
                    f"input {index} has a token id outside of 0..{self.vocab - 1}", param=param
                )


@dataclass(slots=True, eq=False)
class Embedder:
    """`pooling` makes one vector of `dimension` numbers of a text's hidden states."""

    body: Body
    pooling: Pooling
    limits: Limits
    dimension: int
    pace: Pace
    weight_bytes: int

    def embed(
        self,
        inputs: Sequence[Encoded],
        *,
        dimensions: int | None = None,
        pace: Pace | None = None,
        room: Room | None = None,
    ) -> Work:
        """Vectors of `dimension` numbers, or of the first `dimensions` of them.

        Raises BadRequest at once, before any work is asked for; NoMemory later.
        """
        if dimensions is not None and not 1 <= dimensions <= self.dimension:
            raise BadRequest(
                f"the model makes vectors of 1 to {self.dimension} numbers", param="dimensions"
            )
        self.limits.check(inputs, "input")
        head = pooled(self.pooling, dimensions)
        return self.body.encode(inputs, head, pace or self.pace, room or Boundless())


def pooled(pooling: Pooling, dimensions: int | None = None) -> Head:
    """The head of an embedder."""

    def head(hidden: mx.array, batch: Batch) -> mx.array:
        return pooling(hidden, batch.lengths, dimensions)

    return head
