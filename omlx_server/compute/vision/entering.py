"""Puts image features into a forward of a language model."""

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
    """Features in the places of tokens from number `start` on, in row `row` of a forward."""

    row: int
    start: int
    features: Features

    @property
    def stop(self) -> int:
        return self.start + self.features.tokens


class WithImages:
    """A model for one forward, with features in the places of tokens."""

    def __init__(
        self, model: nn.Module, view: View, entries: Sequence[FeatureSpan] = (), scale: float = 1.0
    ) -> None:
        """Features are divided by `scale`, by which the model multiplies its input."""
        self._model = model
        self._view = view
        self._entries = entries
        self._scale = scale

    def __call__(self, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
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
        ids = tokens
        for entry in self._entries:
            ids = _put(ids, entry, mx.zeros((entry.features.tokens,), tokens.dtype))
        embedded: mx.array = language_model(self._model).model.embed_tokens(ids)
        for entry in self._entries:
            features = entry.features.embeddings
            if self._scale != 1:
                features = features.astype(mx.float32) / self._scale
            embedded = _put(embedded, entry, features)
        return embedded

    def _with_deepstack(self, hidden: mx.array, cache: Sequence[Any]) -> mx.array:
        model = language_model(self._model)
        mask = create_attention_mask(hidden, cache[0])
        for number, (layer, layer_cache) in enumerate(zip(model.model.layers, cache, strict=True)):
            hidden = layer(hidden, mask, layer_cache)
            for entry in self._entries:
                deep = entry.features.deepstack
                if deep is not None and number < len(deep):
                    before = hidden[entry.row, entry.start : entry.stop]
                    hidden = _put(hidden, entry, before + deep[number].astype(before.dtype))
        head = model.lm_head if "lm_head" in model else model.model.embed_tokens.as_linear
        logits: mx.array = head(model.model.norm(hidden))
        return logits


def behind(model: nn.Module, shifts: Sequence[int]) -> Callable[..., mx.array]:
    """Return a model for text whose row i is shifts[i] positions ahead."""
    return WithImages(model, moved(shifts)) if any(shifts) else model


def _put(array: mx.array, entry: FeatureSpan, values: mx.array) -> mx.array:
    copy = mx.array(array)
    copy[entry.row, entry.start : entry.stop] = values.astype(array.dtype)
    return copy
