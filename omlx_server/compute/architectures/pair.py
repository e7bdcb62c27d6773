"""A model and its draft model or heads. A forward feeds both, so blocks and rows hold the caches of
both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_attention_mask

from omlx_server.compute.architectures import special
from omlx_server.compute.hardware import device


@dataclass(frozen=True, slots=True)
class HeadsStyle:
    """How an architecture stores and computes its heads. `names` maps our modules to its weights;
    those below the prefix `layer` are the layer's. `array_mask`: the layer takes its mask as an
    array. `chains_normed`: the next prediction begins with the normed hidden state."""

    names: Mapping[str, str]
    layer: str
    array_mask: bool = False
    chains_normed: bool = False


_DEEPSEEK = {
    "project": "eh_proj",
    "embed_norm": "enorm",
    "hidden_norm": "hnorm",
    "norm": "shared_head.norm",
}
_QWEN = {
    "project": "fc",
    "embed_norm": "pre_fc_norm_embedding",
    "hidden_norm": "pre_fc_norm_hidden",
    "norm": "norm",
}
STYLES: Mapping[str, HeadsStyle] = {
    "deepseek_v3": HeadsStyle(_DEEPSEEK, "", array_mask=True),
    "glm4_moe": HeadsStyle(_DEEPSEEK, ""),
    "qwen3_5": HeadsStyle(_QWEN, "layers.0.", chains_normed=True),
    "qwen3_5_moe": HeadsStyle(_QWEN, "layers.0.", chains_normed=True),
}


class PredictionHeads(nn.Module):
    """The heads without the embedding and the output head, which are the model's."""

    def __init__(self, layer: nn.Module, hidden: int, eps: float, style: HeadsStyle) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.embed_norm = nn.RMSNorm(hidden, eps=eps)
        self.hidden_norm = nn.RMSNorm(hidden, eps=eps)
        self.project = nn.Linear(2 * hidden, hidden, bias=False)
        self.layer = layer
        self.norm = nn.RMSNorm(hidden, eps=eps)
        self._style = style

    def __call__(
        self, embedded: mx.array, hidden: mx.array, cache: Any
    ) -> tuple[mx.array, mx.array]:
        """Return the input of the model's head and the next hidden states, both [B, T, D]."""
        normed_inputs = [self.embed_norm(embedded), self.hidden_norm(hidden)]
        inputs = self.project(mx.concatenate(normed_inputs, axis=-1))
        mask = create_attention_mask(inputs, cache, return_array=self._style.array_mask)
        out = self.layer(inputs, mask, cache)
        normed = self.norm(out)
        return normed, normed if self._style.chains_normed else out


class Headed(nn.Module):
    """A model with its heads. Its caches are the `target`'s, then the heads'."""

    def __init__(self, target: nn.Module, heads: PredictionHeads, cache_layer: int) -> None:
        """The heads' cache is of the kind that the target's layer `cache_layer` has."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache_layer = cache_layer
        self.target = target
        self.heads = heads
        self.own_caches = len(special.fresh_caches(target))

    def make_cache(self) -> list[Any]:
        heads_cache = special.fresh_caches(self.target)[self._cache_layer]
        return [*special.fresh_caches(self.target), heads_cache]

    def __call__(self, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
        """Return the target's logits [B, T, V] for tokens int [B, T], which both take in."""
        logits, hidden = self.decode(tokens, cache[: self.own_caches])
        hidden_before = mx.concatenate([mx.zeros_like(hidden[:, :1]), hidden[:, :-1]], axis=1)
        self.draft(tokens, hidden_before, cache[self.own_caches :])
        return logits

    def decode(self, tokens: mx.array, cache: Sequence[Any]) -> tuple[mx.array, mx.array]:
        """Return the target's logits [B, T, V] and its last hidden states [B, T, D]."""
        hidden: mx.array = language_model(self.target).model(tokens, cache)
        return self._logits(hidden), hidden

    def draft(
        self, tokens: mx.array, hidden: mx.array, cache: Sequence[Any]
    ) -> tuple[mx.array, mx.array]:
        """Return the heads' logits [B, T, V] and hidden states after `hidden` [B, T, D]."""
        embedded = language_model(self.target).model.embed_tokens(tokens)
        out, after = self.heads(embedded, hidden, cache[0])
        return self._logits(out), after

    def no_hidden(self, rows: int) -> mx.array:
        """Return zeros [rows, 1, D], for tokens whose hidden state before is not known."""
        norm = self.heads.hidden_norm.weight
        return mx.zeros((rows, 1, norm.shape[0]), dtype=norm.dtype)

    def _logits(self, hidden: mx.array) -> mx.array:
        model = language_model(self.target)
        head = model.lm_head if "lm_head" in model else model.model.embed_tokens.as_linear
        logits: mx.array = head(hidden)
        return logits


def language_model(model: nn.Module) -> Any:
    """Return the text model in a model with a vision tower, else the model itself."""
    return model.language_model if "language_model" in model else model


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
