"""Random models of several architectures, made by mlx-lm's own classes, for measuring memory."""

import copy
import importlib
from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from omlx_server.compute.model.loader import LoadedModel, read_dims, weight_bytes
from omlx_server.compute.quantise import use_rows_of_own_length

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}

_COMMON = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "intermediate_size": 688,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": 8192,
    "max_position_embeddings": 8192,
    "rope_theta": 10000.0,
}

_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**_COMMON, "model_type": "llama"},
    "llama-medium": {
        **_COMMON,
        "model_type": "llama",
        "hidden_size": 640,
        "num_hidden_layers": 8,
        "intermediate_size": 1792,
        "num_attention_heads": 10,
        "num_key_value_heads": 5,
        "vocab_size": 16384,
    },
    "qwen3": {
        **_COMMON,
        "model_type": "qwen3",
        "head_dim": 64,
        "tie_word_embeddings": True,
        "vocab_size": 32000,
    },
    "gemma3_text": {
        **_COMMON,
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "head_dim": 64,
        "query_pre_attn_scalar": 64,
        "sliding_window": 512,
        "sliding_window_pattern": 3,
        "vocab_size": 32000,
    },
    "mixtral": {
        **_COMMON,
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen3_next": {
        **_COMMON,
        "model_type": "qwen3_next",
        "head_dim": 64,
        "linear_num_value_heads": 8,
        "linear_num_key_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 256,
        "mlp_only_layers": [],
        "moe_intermediate_size": 256,
        "partial_rotary_factor": 0.5,
        "full_attention_interval": 2,
        "norm_topk_prob": True,
    },
    "deepseek_v3": {
        **_COMMON,
        "model_type": "deepseek_v3",
        "num_key_value_heads": 8,
        "moe_intermediate_size": 256,
        "n_shared_experts": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "kv_lora_rank": 128,
        "q_lora_rank": 128,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "qk_nope_head_dim": 64,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "gemma2": {
        **_COMMON,
        "model_type": "gemma2",
        "head_dim": 64,
        "query_pre_attn_scalar": 64.0,
    },
}


def make(name: str, dtype: str) -> LoadedModel:
    """In memory alone, with the weights that its class draws."""
    mx.random.seed(0)
    config: dict[str, Any] = copy.deepcopy(dict(_CONFIGS[name]))
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    model.set_dtype(_DTYPES[dtype])
    model.eval()
    mx.eval(model.parameters())
    use_rows_of_own_length(model)
    dims = read_dims(model, config)
    return LoadedModel(model, dims, f"random-{name}-{dtype}", weight_bytes(model))
