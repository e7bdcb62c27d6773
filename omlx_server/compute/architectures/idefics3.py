"""The language model of Idefics3 and SmolVLM: llama under other names, absent from mlx-lm."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama
from mlx_lm.models.base import BaseModelArgs

Weights = dict[str, mx.array]

# Prefixes in checkpoints, and in conversions by mlx-vlm.
_PREFIXES = ("model.text_model.", "language_model.")


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
        """Return the language model's weights under llama's names, without the tower's."""
        renamed: Weights = {}
        for full_name, array in weights.items():
            prefix = next((prefix for prefix in _PREFIXES if full_name.startswith(prefix)), "")
            name = full_name.removeprefix(prefix)
            if name.startswith("lm_head."):
                renamed[name] = array
            elif prefix:
                renamed[f"model.{name.removeprefix('model.')}"] = array
        if "lm_head.weight" not in renamed:
            self.language_model.args.tie_word_embeddings = True
            self.language_model.pop("lm_head")
        sanitized = self.language_model.sanitize(renamed)
        return {f"language_model.{name}": array for name, array in sanitized.items()}

    @property
    def layers(self) -> Any:
        return self.language_model.layers
