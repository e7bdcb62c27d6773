"""Puts image features into a forward of a language model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_attention_mask

from omlx_server.compute.architectures.pair import language_model
from omlx_server.compute.vision.rope import CacheWrapper, shifted_by
from omlx_server.compute.vision.towers.features import Features


@dataclass(frozen=True, slots=True, eq=False)
class FeatureSpan:
    """Features in the places of tokens from number `start` on, in row `row` of a forward."""

    row: int
    start: int
    features: Features

    @property
    def stop(self) -> int:
        return self.start + self.features.tokens


class ImageForward:
    """A model for one forward, with features in the places of tokens."""

    def __init__(
        self,
        model: nn.Module,
        wrap: CacheWrapper,
        spans: Sequence[FeatureSpan] = (),
        scale: float = 1.0,
    ) -> None:
        """Features are divided by `scale`, by which the model multiplies its input."""
        self._model = model
        self._wrap = wrap
        self._spans = spans
        self._scale = scale

    def __call__(self, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
        caches = self._wrap(cache)
        if not self._spans:
            logits = self._model(tokens, cache=caches)
        elif any(span.features.deepstack is not None for span in self._spans):
            logits = self._forward_with_deepstack(self._embed(tokens), caches)
        else:
            logits = self._model(tokens, cache=caches, input_embeddings=self._embed(tokens))
        return logits  # type: ignore[no-any-return]

    def _embed(self, tokens: mx.array) -> mx.array:
        ids = tokens
        for span in self._spans:  # an image's ids are beyond the vocabulary
            ids = _replace_span(ids, span, mx.zeros((span.features.tokens,), tokens.dtype))
        embedded: mx.array = language_model(self._model).model.embed_tokens(ids)
        for span in self._spans:
            features = span.features.embeddings
            if self._scale != 1:
                features = features.astype(mx.float32) / self._scale
            embedded = _replace_span(embedded, span, features)
        return embedded

    def _forward_with_deepstack(self, hidden: mx.array, caches: Sequence[Any]) -> mx.array:
        model = language_model(self._model)
        mask = create_attention_mask(hidden, caches[0])
        for number, (layer, cache) in enumerate(zip(model.model.layers, caches, strict=True)):
            hidden = layer(hidden, mask, cache)
            for span in self._spans:
                deep = span.features.deepstack
                if deep is not None and number < len(deep):
                    before = hidden[span.row, span.start : span.stop]
                    added = before + deep[number].astype(before.dtype)
                    hidden = _replace_span(hidden, span, added)
        head = model.lm_head if "lm_head" in model else model.model.embed_tokens.as_linear
        logits: mx.array = head(model.model.norm(hidden))
        return logits


def with_shifted_rows(model: nn.Module, shifts: Sequence[int]) -> Callable[..., mx.array]:
    """Return a model for text whose row i is shifts[i] positions ahead."""
    return ImageForward(model, shifted_by(shifts)) if any(shifts) else model


def _replace_span(array: mx.array, span: FeatureSpan, values: mx.array) -> mx.array:
    copy = mx.array(array)
    copy[span.row, span.start : span.stop] = values.astype(array.dtype)
    return copy
