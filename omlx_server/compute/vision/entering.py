"""How what the tower computed of images enters a language model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_attention_mask

from omlx_server.compute.architectures.heads import language_model
from omlx_server.compute.vision.towers.features import Features
from omlx_server.compute.vision.views import View, moved


@dataclass(frozen=True, slots=True, eq=False)
class FeatureSpan:
    """Features of an image, or a part of it, that take the places of tokens number `start` and
    following of row number `row` of a forward."""

    row: int
    start: int
    features: Features

    @property
    def stop(self) -> int:
        return self.start + self.features.tokens


class WithImages:
    """A model as one forward is to use it, with features in the places of tokens, and with a `view`
    of its caches. It is called as the model itself is."""

    def __init__(
        self, model: nn.Module, view: View, entries: Sequence[FeatureSpan] = (), scale: float = 1.0
    ) -> None:
        """The model multiplies what enters it by `scale`, so features are divided by that."""
        self._model = model
        self._view = view
        self._entries = entries
        self._scale = scale

    def __call__(self, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
        """Logits [B, T, V] for tokens int [B, T]; what those are in the places of features makes no
        difference."""
        seen = self._view(cache)
        if not self._entries:
            logits = self._model(tokens, cache=seen)
        elif any(entry.features.deepstack is not None for entry in self._entries):
            logits = self._with_deepstack(self._embedded(tokens), seen)
        else:
            embedded = self._embedded(tokens)
            logits = self._model(tokens, cache=seen, input_embeddings=embedded)
        return logits  # type: ignore[no-any-return]

    def _embedded(self, tokens: mx.array) -> mx.array:
        """The embeddings [B, T, hidden] that enter the model: features where entries are, and those
        of tokens elsewhere."""
        known = tokens
        for entry in self._entries:
            known = _put(known, entry, mx.zeros((entry.features.tokens,), tokens.dtype))
        embedded: mx.array = language_model(self._model).model.embed_tokens(known)
        for entry in self._entries:
            features = entry.features.embeddings
            if self._scale != 1:
                features = features.astype(mx.float32) / self._scale
            embedded = _put(embedded, entry, features)
        return embedded

    def _with_deepstack(self, hidden: mx.array, cache: Sequence[Any]) -> mx.array:
        """The logits as mlx-lm's qwen3 and qwen3_moe compute them, with the deepstack features of
        entries added behind the first layers."""
        model = language_model(self._model)
        mask = create_attention_mask(hidden, cache[0])
        for number, (layer, own) in enumerate(zip(model.model.layers, cache, strict=True)):
            hidden = layer(hidden, mask, own)
            for entry in self._entries:
                deep = entry.features.deepstack
                if deep is not None and number < len(deep):
                    before = hidden[entry.row, entry.start : entry.stop]
                    hidden = _put(hidden, entry, before + deep[number].astype(before.dtype))
        head = model.lm_head if "lm_head" in model else model.model.embed_tokens.as_linear
        logits: mx.array = head(model.model.norm(hidden))
        return logits


def behind(model: nn.Module, shifts: Sequence[int]) -> Callable[..., mx.array]:
    """A model as a forward of text is to use it, in which tokens of row i are at positions that are
    shifts[i] ahead of their numbers. The model itself where none is: so text costs nothing more.
    """
    return WithImages(model, moved(shifts)) if any(shifts) else model


def _put(array: mx.array, entry: FeatureSpan, values: mx.array) -> mx.array:
    """The array [B, T, ...] with `values` in the places of an entry. That stays as it is."""
    made = mx.array(array)
    made[entry.row, entry.start : entry.stop] = values.astype(array.dtype)
    return made
