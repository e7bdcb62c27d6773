"""The language model of Idefics3 and SmolVLM: llama under other names, absent from mlx-lm."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama
from mlx_lm.models.base import BaseModelArgs

Weights = dict[str, mx.array]

# Prefixes in checkpoints, and in conversions by mlx-vlm.
_STARTS = ("model.text_model.", "language_model.")


@dataclass
class ModelArgs(BaseModelArgs):  # type: ignore[misc]
    model_type: str
    text_config: dict[str, Any]


class Idefics3Model(nn.Module):
    """A llama with the interface of mlx-lm's models."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        text = {**args.text_config, "model_type": "llama", "tie_word_embeddings": False}
        self.args = args
        self.model_type = args.model_type
        self.language_model = llama.Model(llama.ModelArgs.from_dict(text))

    def __call__(
        self, inputs: mx.array, cache: Any = None, input_embeddings: mx.array | None = None
    ) -> mx.array:
        """Return logits [B, T, V] for tokens int [B, T], or for `input_embeddings` [B, T, D]."""
        logits: mx.array = self.language_model(
            inputs, cache=cache, input_embeddings=input_embeddings
        )
        return logits

    def sanitize(self, weights: Weights) -> Weights:
        named: Weights = {}
        for name, array in weights.items():
            start = next((start for start in _STARTS if name.startswith(start)), None)
            inner = name if start is None else name.removeprefix(start)
            if inner.startswith("lm_head."):
                named[inner] = array
            elif start is not None:
                named[f"model.{inner.removeprefix('model.')}"] = array
        if "lm_head.weight" not in named:
            self.language_model.args.tie_word_embeddings = True
            self.language_model.pop("lm_head")
        named = self.language_model.sanitize(named)
        return {f"language_model.{name}": array for name, array in named.items()}

    @property
    def layers(self) -> Any:
        return self.language_model.layers
