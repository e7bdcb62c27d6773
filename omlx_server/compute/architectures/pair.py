"""A model and its draft model. A forward feeds both, so blocks and rows hold the caches of both."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.architectures import special
from omlx_server.compute.architectures.heads import Headed
from omlx_server.compute.hardware import device


class Pair(nn.Module):
    """A `target` and its `drafter`. The caches are the target's, then the drafter's."""

    def __init__(self, target: nn.Module, drafter: nn.Module, drafter_vocab: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.target = target
        self.drafter = drafter
        self.drafter_vocab = drafter_vocab
        self.own_caches = len(special.fresh_caches(target))

    def make_cache(self) -> list[Any]:
        return [*special.fresh_caches(self.target), *special.fresh_caches(self.drafter)]

    def __call__(
        self,
        tokens: mx.array,
        cache: Sequence[Any],
        target: Callable[..., mx.array] | None = None,
    ) -> mx.array:
        """Return the target's logits [B, T, V] for tokens int [B, T], which both take in; `target`
        is called in its place."""
        target_caches, drafter_caches = cache[: self.own_caches], cache[self.own_caches :]
        logits: mx.array = (target or self.target)(tokens, cache=target_caches)
        # Its work begins before the drafter's is added, so that activations don't add up.
        device.launch([layer.state for layer in target_caches])
        self.draft(tokens, drafter_caches)
        return logits

    def draft(self, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
        """Return the drafter's logits [B, T, V]. Tokens beyond its vocabulary count as its last."""
        clipped = mx.minimum(tokens, self.drafter_vocab - 1)
        logits: mx.array = self.drafter(clipped, cache=cache)
        return logits


def members(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the models of mlx-lm in a model: the target first, then its draft model."""
    match model:
        case Pair():
            return model.target, model.drafter
        case Headed():
            return (model.target,)
    return (model,)
