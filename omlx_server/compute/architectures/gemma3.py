"""Gemma 3 with a vision tower: mlx-lm's class, which also takes the names that newer checkpoints
have for its weights."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gemma3

Weights = dict[str, mx.array]

# How names of other parts begin, behind "model." or not.
_OTHERS = ("vision_tower.", "multi_modal_projector.")


class Gemma3Model(gemma3.Model):  # type: ignore[misc]
    """It is loaded as mlx-lm's."""

    def sanitize(self, weights: Weights) -> Weights:
        """The weights of the language model, by the names of mlx-lm's class."""
        found: Weights = {}
        for name, array in weights.items():
            if name.startswith("model.language_model."):
                found[name.replace("model.language_model.", "language_model.model.", 1)] = array
            elif name.startswith("lm_head."):
                found[f"language_model.{name}"] = array
            elif not name.removeprefix("model.").startswith(_OTHERS):
                found[name] = array
        sane: Weights = super().sanitize(found)
        return sane


def classes(config: Mapping[str, Any]) -> tuple[type[nn.Module], type[Any]] | None:
    """The classes for mlx-lm's `load_model`, if config.json is that of such a model."""
    return (Gemma3Model, gemma3.ModelArgs) if config.get("model_type") == "gemma3" else None
