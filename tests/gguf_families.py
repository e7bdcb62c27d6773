"""Families of GGUF: what a tiny model of each has as fields, and as mlx-lm's config."""

from collections.abc import Mapping
from typing import Any

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, EXPERT_FFN = 128, 4, 2, 32, 96, 64
Fields = Mapping[str, Any]
ARCHITECTURES = {"mixtral": "llama", "deepseek3": "deepseek2"}  # of two that share one
LAYERS = {
    "gemma3": 6,
    "gemma4": 6,
    "qwen35": 4,
    "qwen35moe": 4,
    "qwen3next": 4,
    "cohere2": 4,
    "lfm2": 3,
    "lfm2moe": 3,
}
_GRANITE = {
    "embedding_scale": 12.0,
    "residual_scale": 0.22,
    "attention.scale": 0.0625,
    "logit_scale": 8.0,
}
_GRANITE_CONFIG = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0625,
    "logits_scaling": 8.0,
    "attention_bias": False,
    "mlp_bias": False,
}
_EXPERTS = {"expert_count": 4, "expert_used_count": 2}
_EXPERTS_CONFIG = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SMALL_EXPERTS = {**_EXPERTS, "expert_feed_forward_length": EXPERT_FFN}
_SMALL_EXPERTS_CONFIG = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_FFN,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
_SHARED = {"expert_shared_feed_forward_length": FFN}
_SHARED_CONFIG = {"shared_expert_intermediate_size": FFN}
_ROUTED = {
    **_SMALL_EXPERTS,
    "expert_count": 8,
    "expert_shared_count": 2,
    "expert_weights_scale": 2.5,
    "leading_dense_block_count": 1,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
}
_ROUTED_CONFIG = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": EXPERT_FFN,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "n_group": 4,
    "topk_group": 2,
}
_LATENT = {
    "attention.head_count_kv": 1,
    "attention.key_length": 64 + 16,
    "attention.value_length": 64,
    "attention.key_length_mla": 32 + 16,
    "attention.value_length_mla": 32,
    "attention.kv_lora_rank": 64,
    "rope.dimension_count": 16,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
    "rope.scaling.yarn_log_multiplier": 0.0707,
}
_LATENT_CONFIG = {
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "rope_scaling": {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    },
}
_QWEN35 = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 32,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 128,
    "full_attention_interval": 4,
    "rope.dimension_count": 8,
    "rope.dimension_sections": [2, 1, 1, 0],
}
_QWEN35_CONFIG = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "type": "default",
        "mrope_section": [2, 1, 1],
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    },
}
_LFM2 = {"attention.head_count_kv": [0, KV_HEADS, 0], "shortconv.l_cache": 3}
_LFM2_CONFIG = {
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "layer_types": ["conv", "full_attention", "conv"],
}
_LAYER_NORM = {"attention.layer_norm_epsilon": 1e-5}
_WINDOWS = [True, True, False, True, True, False]
_GEMMA4 = {
    **_SMALL_EXPERTS,
    "attention.sliding_window_pattern": _WINDOWS,
    "attention.sliding_window": 8,
    "attention.head_count_kv": [KV_HEADS, KV_HEADS, 1, KV_HEADS, KV_HEADS, 1],
    "attention.key_length": 2 * HEAD_DIM,
    "attention.value_length": 2 * HEAD_DIM,
    "attention.key_length_swa": HEAD_DIM,
    "attention.value_length_swa": HEAD_DIM,
    "attention.shared_kv_layers": 3,
    "feed_forward_length": [FFN] * 3 + [2 * FFN] * 3,
    "embedding_length_per_layer_input": 32,
    "final_logit_softcapping": 30.0,
    "rope.freq_base_swa": 1000.0,
    "rope.dimension_count": 2 * HEAD_DIM,
    "rope.dimension_count_swa": HEAD_DIM,
}
_GEMMA4_CONFIG = {
    "layer_types": [f"{'sliding' if window else 'full'}_attention" for window in _WINDOWS],
    "global_head_dim": 2 * HEAD_DIM,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 263,
    "sliding_window": 8,
    "rope_parameters": {
        "full_attention": {
            "type": "proportional",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {"type": "default", "rope_theta": 1000.0},
    },
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": EXPERT_FFN,
}
PROPORTIONAL = [1.0] * 8 + [1e30] * 24
LONG, SHORT = [1.0 + i for i in range(8)], [1.0] * 8

FIELDS: Mapping[str, Fields] = {
    "mixtral": _EXPERTS,
    "gpt-oss": {**_SMALL_EXPERTS, "attention.sliding_window": 8},
    "gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": {"attention.sliding_window": 8},
    "gemma4": _GEMMA4,
    "granite": _GRANITE,
    "granitemoe": {**_GRANITE, **_EXPERTS},
    "minicpm": {"embedding_scale": 12.0, "residual_scale": 0.99, "logit_scale": 0.5},
    "phi3": {
        "rope.dimension_count": HEAD_DIM // 2,
        "rope.scaling.original_context_length": 128,
        "rope.scaling.attn_factor": 1.13389,
    },
    "qwen2moe": {**_SMALL_EXPERTS, **_SHARED},
    "qwen3moe": _SMALL_EXPERTS,
    "qwen35": _QWEN35,
    "qwen35moe": {**_QWEN35, **_SMALL_EXPERTS, **_SHARED},
    "qwen3next": {
        **{name: value for name, value in _QWEN35.items() if "sections" not in name},
        **_SMALL_EXPERTS,
        **_SHARED,
    },
    "mistral3": {
        "attention.temperature_scale": 0.5,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 8,
        "rope.scaling.yarn_log_multiplier": 1.0,
    },
    "minimax-m2": {
        **_SMALL_EXPERTS,
        "feed_forward_length": EXPERT_FFN,
        "expert_gating_func": 2,
        "rope.dimension_count": HEAD_DIM // 2,
    },
    "glm4": {"rope.dimension_count": HEAD_DIM // 2},
    "glm4moe": {**_ROUTED, "rope.dimension_count": HEAD_DIM // 2},
    "deepseek2": {
        **_LATENT,
        **_ROUTED,
        "attention.q_lora_rank": 64,
        "expert_gating_func": 1,
        "expert_weights_norm": False,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
    },
    "deepseek3": {**_LATENT, **_ROUTED, "attention.q_lora_rank": 64},
    "lfm2": _LFM2,
    "lfm2moe": {
        **_LFM2,
        **_SMALL_EXPERTS,
        "leading_dense_block_count": 1,
        "expert_gating_func": 2,
    },
    "starcoder2": _LAYER_NORM,
    "command-r": {**_LAYER_NORM, "logit_scale": 0.0625},
    "cohere2": {**_LAYER_NORM, "logit_scale": 0.0625, "attention.sliding_window": 8},
    "nemotron": {**_LAYER_NORM, "rope.dimension_count": HEAD_DIM // 2},
}
CONFIGS: Mapping[str, Fields] = {
    "mixtral": _EXPERTS_CONFIG,
    "gpt-oss": {**_EXPERTS_CONFIG, "intermediate_size": EXPERT_FFN, "sliding_window": 8},
    "gemma2": {
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": HEAD_DIM,
    },
    "gemma4": _GEMMA4_CONFIG,
    "gemma3": {"sliding_window": 8, "query_pre_attn_scalar": HEAD_DIM},
    "granite": _GRANITE_CONFIG,
    "granitemoe": {**_GRANITE_CONFIG, **_EXPERTS_CONFIG},
    "minicpm": {"scale_emb": 12.0, "scale_depth": 0.99 * 2**0.5, "dim_model_base": HIDDEN / 0.5},
    "phi3": {
        "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": 128,
        "rope_scaling": {"type": "longrope", "long_factor": LONG, "short_factor": SHORT},
    },
    "qwen2moe": {**_SMALL_EXPERTS_CONFIG, **_SHARED_CONFIG},
    "qwen3moe": _SMALL_EXPERTS_CONFIG,
    "qwen35": _QWEN35_CONFIG,
    "qwen35moe": {**_QWEN35_CONFIG, **_SMALL_EXPERTS_CONFIG, **_SHARED_CONFIG},
    "qwen3next": {**_QWEN35_CONFIG, **_SMALL_EXPERTS_CONFIG, **_SHARED_CONFIG},
    "mistral3": {
        "rope_parameters": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 8,
            "rope_theta": 10000.0,
            "llama_4_scaling_beta": 0.5,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    },
    "minimax-m2": {
        **_EXPERTS_CONFIG,
        "intermediate_size": EXPERT_FFN,
        "shared_intermediate_size": 0,
        "rotary_dim": HEAD_DIM // 2,
    },
    "glm4": {"partial_rotary_factor": 0.5, "attention_bias": True},
    "glm4moe": {
        **_ROUTED_CONFIG,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "use_qk_norm": True,
        "rope_scaling": None,
    },
    "deepseek2": {
        **_LATENT_CONFIG,
        **_ROUTED_CONFIG,
        "q_lora_rank": 64,
        "topk_method": "greedy",
        "norm_topk_prob": False,
        "n_group": 1,
        "topk_group": 1,
    },
    "deepseek3": {**_LATENT_CONFIG, **_ROUTED_CONFIG, "q_lora_rank": 64},
    "lfm2": {**_LFM2_CONFIG, "block_dim": HIDDEN, "block_multiple_of": 1}
    | {"block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False},
    "lfm2moe": {
        **_LFM2_CONFIG,
        **_SMALL_EXPERTS_CONFIG,
        "num_dense_layers": 1,
        "use_expert_bias": True,
    },
    "starcoder2": {"norm_epsilon": 1e-5},
    "command-r": {"use_qk_norm": False},
    "cohere2": {"sliding_window": 8},
    "nemotron": {"hidden_act": "relu2", "norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    "exaone4": {"rope_scaling": None, "sliding_window": None, "sliding_window_pattern": None},
    "ernie4_5": {"use_bias": False},
    "seed_oss": {"attention_bias": True},
}
