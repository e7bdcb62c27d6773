"""A model that computes embeddings of texts. Owned by the mlx thread. It takes token ids, no text.

Its work is an iterator: each step of it computes one slice, as large as `pace` says, so that the
mlx thread can do other work in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.embed.batch import Batch, Work
from omlx_server.compute.embed.body import BackboneEncoder, Head
from omlx_server.compute.embed.pace import PassSize
from omlx_server.compute.embed.pooling import Pooling
from omlx_server.core.encoded import TokenizedText
from omlx_server.core.memory.room import Boundless, Room
from omlx_server.errors import BadRequest


@dataclass(frozen=True, slots=True)
class InputLimits:
    """The inputs that a model takes: 1 to `max_tokens` token ids below `vocab`. Shorter inputs of a
    batch are padded with `pad_id`."""

    vocab: int
    max_tokens: int
    pad_id: int

    def check(self, inputs: Sequence[TokenizedText], param: str) -> None:
        """Raises BadRequest, naming the request's parameter `param`, unless all inputs are within
        the limits. An id beyond the vocabulary would read memory of something else."""
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
    """Computes embeddings: `pooling` makes one vector of `dimension` numbers from the hidden states
    that `body` makes of a text."""

    body: BackboneEncoder
    pooling: Pooling
    limits: InputLimits
    dimension: int
    pace: PassSize
    weight_bytes: int

    def embed(
        self,
        inputs: Sequence[TokenizedText],
        *,
        dimensions: int | None = None,
        pace: PassSize | None = None,
        room: Room | None = None,
    ) -> Work:
        """The work that computes the vector of each input: `dimension` numbers, or the first
        `dimensions` of them.

        Raises BadRequest at once if an input or `dimensions` can't be taken. The work may raise
        NoMemory.
        """
        if dimensions is not None and not 1 <= dimensions <= self.dimension:
            raise BadRequest(
                f"the model makes vectors of 1 to {self.dimension} numbers", param="dimensions"
            )
        self.limits.check(inputs, "input")
        head = pooled(self.pooling, dimensions)
        return self.body.encode(inputs, head, pace or self.pace, room or Boundless())


def pooled(pooling: Pooling, dimensions: int | None = None) -> Head:
    """The head that computes vectors, float32 [B, D] with D = `dimensions` or all of them."""

    def head(hidden: mx.array, batch: Batch) -> mx.array:
        return pooling(hidden, batch.lengths, dimensions)

    return head
