"""A model and the one that drafts for it, computed together.

A forward of the pair feeds both the same tokens. So prompts, blocks, restores and rows hold the
caches of both, and a hit for one is a hit for the other. Only decodes tell them apart
(compute/drafting/).
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.architectures import special
from omlx_server.compute.architectures.heads import Headed
from omlx_server.compute.hardware import device


class Pair(nn.Module):
    """Its caches are those of the `target`, then those of the `drafter`."""

    def __init__(self, target: nn.Module, drafter: nn.Module, drafter_vocab: int) -> None:
        """The drafter has logits for `drafter_vocab` tokens."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.target = target
        self.drafter = drafter
        self.drafter_vocab = drafter_vocab
        self.own_caches = len(special.fresh_caches(target))

    def make_cache(self) -> list[Any]:
        """Fresh caches of both."""
        return [*special.fresh_caches(self.target), *special.fresh_caches(self.drafter)]

    def __call__(
        self,
        tokens: mx.array,
        cache: Sequence[Any],
        target: Callable[..., mx.array] | None = None,
    ) -> mx.array:
        """The target's logits [B, T, V] for tokens int [B, T], which both take in. `target` is
        called in its place: itself with images, which the drafter does not see. Launches what the
        target's caches need: in one graph the activations of both would be alive at once."""
        own = self.own_caches
        logits: mx.array = (target or self.target)(tokens, cache=cache[:own])
        device.launch([layer.state for layer in cache[:own]])
        self.draft(tokens, cache[own:])
        return logits

    def draft(self, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
        """The drafter's logits [B, T, V] for tokens int [B, T]. A token that it does not have
        counts as its last."""
        known = mx.minimum(tokens, self.drafter_vocab - 1)
        logits: mx.array = self.drafter(known, cache=cache)
        return logits


def members(model: nn.Module) -> tuple[nn.Module, ...]:
    """The target and the drafter of a pair, the target of a model with heads; any other model
    itself."""
    match model:
        case Pair():
            return model.target, model.drafter
        case Headed():
            return (model.target,)
    return (model,)
