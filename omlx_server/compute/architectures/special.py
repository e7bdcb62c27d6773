"""What single architectures of mlx-lm need beyond what their cache classes tell.

The only table of their names. `scripts/campaign architectures` compares every architecture with
mlx-lm alone; what it finds wrong belongs here, with the reason.
"""

from collections.abc import Mapping
from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_lm.models.rope_utils import DynamicNTKScalingRoPE

from omlx_server.compute.architectures.grouped_mask import GroupedMaskKVCache
from omlx_server.compute.architectures.inclusive_ring import InclusiveRing

# Why a batch can't be right: rows of a batch are padded on the left, so that a token's place in the
# batch is not its place in its own sequence.
SERVED_ALONE: Mapping[str, str] = {
    "afm7": "its layers without keys of their own take positions from the batch",
    "gpt_bigcode": "its position embeddings are looked up for one length",
    "longcat_flash_ngram": "its state of n-grams has as many tokens as were read, up to n",
    "minimax_m3_vl": "its sparse attention divides the places of the batch into blocks",
    "phi3small": "its sparse attention divides the places of the batch into blocks",
}
# Why what was computed of a prompt can't serve another one.
NOT_REUSED: Mapping[str, str] = {
    "phi3small": "mlx-lm lets its tokens see those behind them in the same pass",
}


def architecture_of(model: nn.Module) -> str:
    """The name of the module of mlx-lm that the model's class stands in."""
    return type(model).__module__.rpartition(".")[2]


def why_alone(model: nn.Module) -> str:
    """Why rows of a model can't share a batch though its caches have a batch form; else empty."""
    if any(isinstance(module, DynamicNTKScalingRoPE) for module in model.modules()):
        return "its positions are scaled by the length of one sequence"
    return SERVED_ALONE.get(architecture_of(model), "")


def adapted(model: nn.Module, caches: list[Any]) -> list[Any]:
    """A model's fresh caches, with classes of ours where those of mlx-lm would answer wrongly."""
    match architecture_of(model):
        case "gemma2" if model.args.num_attention_heads != model.args.num_key_value_heads:
            return [GroupedMaskKVCache() if type(c) is KVCache else c for c in caches]
        case "plamo3":
            return [InclusiveRing(c.max_size) if type(c) is RotatingKVCache else c for c in caches]
    return caches
