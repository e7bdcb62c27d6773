"""Which drafter a model has."""

import mlx.nn as nn

from omlx_server.compute.architectures.heads import Headed
from omlx_server.compute.architectures.pair import Pair
from omlx_server.compute.drafting.base import Drafter
from omlx_server.compute.drafting.heads_drafter import HeadsDrafter
from omlx_server.compute.drafting.model_drafter import ModelDrafter


def drafter_of(model: nn.Module, vocab: int) -> Drafter | None:
    """What drafts for the rows of a batch beside their text and grammars; their logits have `vocab`
    entries."""
    match model:
        case Pair():
            return ModelDrafter(model, vocab)
        case Headed():
            return HeadsDrafter(model)
    return None
