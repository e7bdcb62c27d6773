"""Tiny configs of the architectures that see, as mlx-lm serves them: the language model alone."""

from typing import Any

from tests.architectures.dense import COMMON, MISTRAL_YARN, SLIDING, VOCAB
from tests.architectures.experts import LATENT

_TEXT: dict[str, Any] = {**COMMON, "head_dim": 16}

_MINISTRAL: dict[str, Any] = {
    **SLIDING,
    "model_type": "ministral3",
    "rope_parameters": MISTRAL_YARN,
}

VISION: dict[str, dict[str, Any]] = {
    "gemma3": {
        "vocab_size": VOCAB,
        "text_config": {
            **_TEXT,
            "model_type": "gemma3_text",
            "num_hidden_layers": 3,
            "query_pre_attn_scalar": 16,
            "sliding_window": 16,
            "sliding_window_pattern": 3,
        },
    },
    "gemma4": {
        "vocab_size": VOCAB,
        "text_config": {
            **_TEXT,
            "model_type": "gemma4_text",
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "global_head_dim": 32,
            "vocab_size_per_layer_input": VOCAB,
            "hidden_size_per_layer_input": 16,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    },
    "gemma4+experts": {
        "vocab_size": VOCAB,
        "text_config": {
            **_TEXT,
            "model_type": "gemma4_text",
            "num_kv_shared_layers": 0,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
    },
    "kimi_k25": {"text_config": {**LATENT, "model_type": "kimi_k2"}},
    "kimi_vl": {"text_config": {**LATENT, "model_type": "deepseek_v3", "q_lora_rank": None}},
    "lfm2-vl": {
        "text_config": {
            **COMMON,
            "model_type": "lfm2",
            "num_hidden_layers": 3,
            "norm_eps": 1e-5,
            "conv_bias": False,
            "conv_L_cache": 3,
            "block_dim": 64,
            "block_multiple_of": 32,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": False,
            "block_ff_dim": 96,
            "layer_types": ["conv", "full_attention", "conv"],
        },
    },
    "minimax_m3_vl": {
        "text_config": {
            **_TEXT,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "intermediate_size": 32,
            "dense_intermediate_size": 96,
            "shared_intermediate_size": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.0,
            "partial_rotary_factor": 0.5,
            "moe_layer_freq": [0, 1, 1],
            "sparse_attention_config": {
                "sparse_num_index_heads": 2,
                "sparse_index_dim": 16,
                "sparse_block_size": 8,
                "sparse_topk_blocks": 3,
                "sparse_local_block": 1,
                "sparse_attention_freq": [0, 1, 1],
            },
        },
    },
    "mistral3": {"text_config": {**_TEXT, "model_type": "mistral"}},
    "mistral3+sliding": {"text_config": _MINISTRAL},
    "mistral3+latent": {
        "text_config": {**LATENT, "model_type": "mistral4", "rope_parameters": MISTRAL_YARN},
    },
    "pixtral": {"text_config": {**_TEXT, "model_type": "mistral"}},
    "qwen2_vl": {"text_config": {**COMMON, "model_type": "qwen2_vl_text"}},
    "qwen3_vl": {"text_config": {**_TEXT, "model_type": "qwen3_vl_text"}},
    "qwen3_vl_moe": {
        "text_config": {
            **_TEXT,
            "model_type": "qwen3_vl_moe_text",
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [0],
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    },
}
