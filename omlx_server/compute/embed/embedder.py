"""Models that compute embeddings of token ids, or the relevance of a document for a query. Mlx
thread."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.embed.backbone_encoder import BackboneEncoder, Head, PassSize
from omlx_server.compute.embed.batch import BatchWork
from omlx_server.compute.embed.bert import BertRanker, RobertaRanker
from omlx_server.compute.embed.pooling import Pooling
from omlx_server.core.encoded import TokenizedText
from omlx_server.core.memory.room import Boundless, Room
from omlx_server.errors import BadRequest


@dataclass(frozen=True, slots=True)
class InputLimits:
    """Inputs have 1 to `max_tokens` ids below `vocab`. Batches are padded with `pad_id`."""

    vocab: int
    max_tokens: int
    pad_id: int

    def check(self, inputs: Sequence[TokenizedText], param: str) -> None:
        """Raise BadRequest for inputs beyond the limits."""
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
    """A model for embeddings: `pooling` makes one vector of `dimension` numbers from the hidden
    states of an input."""

    encoder: BackboneEncoder
    pooling: Pooling
    limits: InputLimits
    dimension: int
    pass_size: PassSize
    weight_bytes: int

    def embed(
        self,
        inputs: Sequence[TokenizedText],
        *,
        dimensions: int | None = None,
        room: Room | None = None,
    ) -> BatchWork:
        """Compute each input's vector, shortened to `dimensions` numbers. Raises BadRequest at
        once; the work may raise NoMemory."""
        if dimensions is not None and not 1 <= dimensions <= self.dimension:
            raise BadRequest(
                f"the model makes vectors of 1 to {self.dimension} numbers", param="dimensions"
            )
        self.limits.check(inputs, "input")
        head = pooling_head(self.pooling, dimensions)
        return self.encoder.encode(inputs, head, self.pass_size, room or Boundless())


def pooling_head(pooling: Pooling, dimensions: int | None = None) -> Head:
    return lambda hidden, batch: pooling(hidden, batch.lengths, dimensions)


@dataclass(slots=True, eq=False)
class CrossEncoder:
    """A model for reranking: `head` computes an input's relevance from its hidden states."""

    encoder: BackboneEncoder
    head: Head
    limits: InputLimits
    pass_size: PassSize
    weight_bytes: int

    def score(self, inputs: Sequence[TokenizedText], *, room: Room | None = None) -> BatchWork:
        """Compute each input's relevance, the sigmoid of its logit. Raises BadRequest at once;
        the work may raise NoMemory."""
        self.limits.check(inputs, "documents")
        return self.encoder.encode(inputs, self.head, self.pass_size, room or Boundless())


def relevance_head(model: BertRanker | RobertaRanker) -> Head:
    return lambda hidden, batch: mx.sigmoid(model.logits(hidden[:, 0]).astype(mx.float32))
