"""A model that reads a query and a document together and says how well they fit. Owned by the mlx
thread; speaks token ids only. Work is handed out slice by slice, as an embedder's."""

from collections.abc import Sequence

import mlx.core as mx

from omlx_server.compute.embed.batch import Batch, Part, Work
from omlx_server.compute.embed.bert import BertRanker, RobertaRanker
from omlx_server.compute.embed.embedder import Limits
from omlx_server.compute.embed.pace import Pace
from omlx_server.core.encoded import Encoded
from omlx_server.core.slices import group


class CrossEncoder:
    def __init__(
        self, model: BertRanker | RobertaRanker, limits: Limits, *, pace: Pace, weight_bytes: int
    ) -> None:
        self.limits = limits
        self.pace = pace
        self.weight_bytes = weight_bytes
        self._model = model

    def score(self, inputs: Sequence[Encoded], *, pace: Pace | None = None) -> Work:
        """Relevances between 0 and 1: the sigmoid of the model's one logit.

        Raises BadRequest at once, before any work is asked for.
        """
        self.limits.check(inputs, "documents")
        return self._work(inputs, pace or self.pace)

    def _work(self, inputs: Sequence[Encoded], pace: Pace) -> Work:
        for indices in group([len(one) for one in inputs], pace.group_tokens):
            batch = Batch.of([inputs[i] for i in indices], self.limits.pad_id)
            hidden = yield from self._model.run(batch, pace.slice_tokens)
            scores = mx.sigmoid(self._model.logits(hidden[:, 0]).astype(mx.float32))
            mx.eval(scores)
            yield Part(indices, scores)
