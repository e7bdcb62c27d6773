"""A model that reads a query and a document together, and computes the document's relevance. Owned
by the mlx thread. It takes token ids, and its work is done in slices, as that of an embedder."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.embed.batch import Batch, Work
from omlx_server.compute.embed.bert import BertRanker, RobertaRanker
from omlx_server.compute.embed.body import BackboneEncoder, Head
from omlx_server.compute.embed.embedder import InputLimits
from omlx_server.compute.embed.pace import PassSize
from omlx_server.core.encoded import TokenizedText
from omlx_server.core.memory.room import Boundless, Room


@dataclass(slots=True, eq=False)
class CrossEncoder:
    """Computes relevances: `head` computes them from the hidden states that `body` makes."""

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
        """The work that computes the relevance of each input, from 0 to 1: the sigmoid of the
        model's one logit.

        Raises BadRequest at once if an input can't be taken. The work may raise NoMemory.
        """
        self.limits.check(inputs, "documents")
        return self.body.encode(inputs, self.head, pace or self.pace, room or Boundless())


def relevance(model: BertRanker | RobertaRanker) -> Head:
    """The head that computes relevances, float32 [B] from 0 to 1, with a ranker's classifier."""

    def head(hidden: mx.array, batch: Batch) -> mx.array:
        return mx.sigmoid(model.logits(hidden[:, 0]).astype(mx.float32))

    return head
