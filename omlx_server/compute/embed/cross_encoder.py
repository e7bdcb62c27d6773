"""A model that computes the relevance of a document for a query. Mlx thread."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.embed.batch import Batch, Work
from omlx_server.compute.embed.bert import BertRanker, RobertaRanker
from omlx_server.compute.embed.body import BackboneEncoder, Head, PassSize
from omlx_server.compute.embed.embedder import InputLimits
from omlx_server.core.encoded import TokenizedText
from omlx_server.core.memory.room import Boundless, Room


@dataclass(slots=True, eq=False)
class CrossEncoder:
    """`head` computes relevances from the hidden states of `body`."""

    body: BackboneEncoder
    head: Head
    limits: InputLimits
    pace: PassSize
    weight_bytes: int

    def score(
        self,
        inputs: Sequence[TokenizedText],
        *,
        pace: PassSize | None = None,
        room: Room | None = None,
    ) -> Work:
        """Compute each input's relevance, the sigmoid of its logit. Raises BadRequest at once;
        the work may raise NoMemory."""
        self.limits.check(inputs, "documents")
        return self.body.encode(inputs, self.head, pace or self.pace, room or Boundless())


def relevance(model: BertRanker | RobertaRanker) -> Head:
    def head(hidden: mx.array, batch: Batch) -> mx.array:
        return mx.sigmoid(model.logits(hidden[:, 0]).astype(mx.float32))

    return head
