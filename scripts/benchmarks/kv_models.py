"""Random models whose keys and values are large and all else is small, made by mlx-lm's own llama:
8 KV heads of 128 as in many models of 7 to 70 billion weights."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.models import llama

from omlx_server.compute.model.loader import LoadedModel, read_dims, weight_bytes
from omlx_server.compute.quantise import use_rows_of_own_length

HEADS = 8
HEAD_DIM = 128
VOCAB = 512
WIDTHS: Mapping[str, int] = {"float32": 4, "bfloat16": 2}
"""Bytes of a number, by the types that a model may compute in."""

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}
_HIDDEN = 64


def make(layers: int, dtype: str) -> LoadedModel:
    """The same weights for the same arguments, in memory alone. `dtype` is one of `WIDTHS`."""
    mx.random.seed(0)
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "num_hidden_layers": layers,
        "intermediate_size": _HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB,
        "max_position_embeddings": 8192,
        "rope_theta": 10000.0,
    }
    model = llama.Model(llama.ModelArgs.from_dict(config))
    model.set_dtype(_DTYPES[dtype])
    model.eval()
    mx.eval(model.parameters())
    use_rows_of_own_length(model)
    name = f"random-{layers}x{HEADS}x{HEAD_DIM}-{dtype}"
    return LoadedModel(model, read_dims(model, config), name, weight_bytes(model))
