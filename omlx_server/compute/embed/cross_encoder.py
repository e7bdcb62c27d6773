"""A model that takes a query and a document together and says how well they fit. Owned by the mlx
thread; speaks token ids only. Work is handed out slice by slice, as an embedder's."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.embed.batch import Batch, Work
from omlx_server.compute.embed.bert import BertRanker, RobertaRanker
from omlx_server.compute.embed.body import Body, Head
from omlx_server.compute.embed.embedder import Limits
from omlx_server.compute.embed.pace import Pace
from omlx_server.core.encoded import Encoded
from omlx_server.core.memory.room import Boundless, Room


@dataclass(slots=True, eq=False)
class CrossEncoder:
    """`body` is that of a ranker, and `head` makes relevances of its hidden states."""

    body: Body
    head: Head
    limits: Limits
    pace: Pace
    weight_bytes: int

    def score(
        self, inputs: Sequence[Encoded], *, pace: Pace | None = None, room: Room | None = None
    ) -> Work:
        """Relevances between 0 and 1: the sigmoid of the model's one logit.

        Raises BadRequest at once, before any work is asked for; NoMemory later.
        """
        self.limits.check(inputs, "documents")
        return self.body.encode(inputs, self.head, pace or self.pace, room or Boundless())


def relevance(model: BertRanker | RobertaRanker) -> Head:
    """The head of a ranker."""

    def head(hidden: mx.array, batch: Batch) -> mx.array:
        return mx.sigmoid(model.logits(hidden[:, 0]).astype(mx.float32))

    return head
