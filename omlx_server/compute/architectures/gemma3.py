"""Gemma 3 with a vision tower."""

import mlx.core as mx
from mlx_lm.models import gemma3

Weights = dict[str, mx.array]

# Prefixes of the vision tower's weights, after an optional "model.".
_TOWER = ("vision_tower.", "multi_modal_projector.")


class Gemma3Model(gemma3.Model):  # type: ignore[misc]
    """mlx-lm's Gemma 3, which also accepts the weight names of newer checkpoints."""

    def sanitize(self, weights: Weights) -> Weights:
        renamed: Weights = {}
        for name, array in weights.items():
            if name.startswith("model.language_model."):
                renamed[name.replace("model.language_model.", "language_model.model.", 1)] = array
            elif name.startswith("lm_head."):
                renamed[f"language_model.{name}"] = array
            elif not name.removeprefix("model.").startswith(_TOWER):
                renamed[name] = array
        return super().sanitize(renamed)  # type: ignore[no-any-return]
