"""Tiny configs of the architectures with layers whose state has one size: recurrent, conv."""

from typing import Any

from tests.architectures.dense import COMMON, VOCAB

_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}

_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}

# The last layer of each group of two attends to everything.
_BAILING: dict[str, Any] = {
    **COMMON,
    **_EXPERTS,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "num_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "layer_group_size": 2,
    "group_norm_size": 2,
    "routed_scaling_factor": 1.0,
    "score_function": "sigmoid",
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
}

_KIMI: dict[str, Any] = {  # the second layer attends to everything
    **COMMON,
    **_LATENT,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "model_max_length": 4096,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "linear_attn_config": {
        "kda_layers": [1, 3],  # counted from one
        "full_attn_layers": [2],
        "num_heads": 4,
        "head_dim": 16,
        "short_conv_kernel_size": 4,
    },
}

_GATED_DELTA: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}

_MAMBA: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "state_size": 16,
    "num_hidden_layers": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": "auto",
    "tie_word_embeddings": False,
}

RECURRENT: dict[str, dict[str, Any]] = {
    "baichuan_m1": {
        **COMMON,
        "num_hidden_layers": 3,
        "sliding_window": 16,
        "sliding_window_layers": [0, 2],
        "conv_window": 2,
        "num_swa_attention_heads": 8,
        "num_swa_key_value_heads": 4,
    },
    "bailing_hybrid": {**_BAILING, **_LATENT},
    "bailing_moe_linear": {**_BAILING, "num_key_value_heads": 2},
    "bailing_moe_v3": {
        **_BAILING,
        **_LATENT,
        "moe_shared_expert_intermediate_size": 32,
        "short_conv_kernel_size": 4,
    },
    "gear": {
        **COMMON,
        "num_hidden_layers": 3,
        "head_dim": 16,
        "query_pre_attn_scalar": 16.0,
        "sliding_window": 16,
        "layer_types": ["conv_mixer", "sliding_attention", "full_attention"],
        "conv_L_cache": 3,
    },
    "jamba": {
        **COMMON,
        "num_hidden_layers": 3,
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    },
    "kimi_k3": {
        "text_config": {
            **_KIMI,
            "hidden_act": "situ",
            "activation_situ_beta": 4.0,
            "activation_situ_linear_beta": 25.0,
            "attn_res_block_size": 2,
            "mla_use_output_gate": True,
            "routed_expert_hidden_size": 32,
            "latent_moe_use_norm": True,
        },
    },
    "kimi_k3+plain": {  # without attention over the residuals; its text alone
        **_KIMI,
        "linear_attn_config": {
            **_KIMI["linear_attn_config"],
            "gate_lower_bound": -5.0,
            "use_full_rank_gate": True,
        },
    },
    "kimi_linear": _KIMI,
    "lfm2_moe": {
        **COMMON,
        **_EXPERTS,
        "num_hidden_layers": 3,
        "use_expert_bias": True,
        "num_dense_layers": 1,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "mamba": _MAMBA,
    "falcon_mamba": {**_MAMBA, "mixer_rms_eps": 1e-6},  # served by the class of mamba
    "granitemoehybrid+dense": {
        **COMMON,
        "attention_bias": False,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.25,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "layer_types": ["attention", "attention"],
        "mlp_bias": False,
    },
    "nemotron_h+experts": {
        **COMMON,
        "head_dim": 16,
        "attention_bias": False,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "layers_block_type": ["mamba", "moe", "attention", "moe"],
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 32,
        "moe_latent_size": 32,
        "n_group": 1,
        "topk_group": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    },
    "olmo_hybrid": {
        **COMMON,
        **_GATED_DELTA,
        "linear_allow_neg_eigval": True,
        "attention_bias": False,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "plamo2": {  # every second layer is of Mamba
        **COMMON,
        "num_hidden_layers": 4,
        "hidden_size_per_head": 16,
        "mamba_d_state": 16,
        "mamba_num_heads": 8,
        "mamba_step": 2,
    },
    "prism_hadamard_qwen35": {  # 2-bit weights need widths of 128, a rotation one of 512
        "text_config": {
            **COMMON,
            **_GATED_DELTA,
            "model_type": "qwen3_5_text",
            "hidden_size": 128,
            "intermediate_size": 512,
            "head_dim": 32,
            "full_attention_interval": 2,
        },
        "schema_version": 2,
        "tensor_namespace": "mlx-vlm-qwen3_5",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [
            {
                "path": f"model.layers.{layer}.mlp.{projection}",
                "embedding": False,
                "dtype": "float16",
                "block": block,
            }
            for layer in range(2)
            for projection, block in (("up_proj", 0), ("down_proj", 512))
        ],
    },
    "qwen3_5+vision": {
        "text_config": {
            **COMMON,
            **_GATED_DELTA,
            "model_type": "qwen3_5_text",
            "head_dim": 16,
            "full_attention_interval": 2,
        },
    },
    "qwen3_5_moe": {
        "text_config": {
            **COMMON,
            **_EXPERTS,
            **_GATED_DELTA,
            "model_type": "qwen3_5_moe_text",
            "head_dim": 16,
            "shared_expert_intermediate_size": 32,
            "full_attention_interval": 2,
        },
    },
    "recurrent_gemma": {
        **COMMON,
        "num_hidden_layers": 3,
        "attention_bias": False,
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "attention_window_size": 16,
        "block_types": ["recurrent", "attention", "recurrent"],
    },
    "rwkv7": {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "norm_eps": 1e-5,
        "head_dim": 16,
        "num_hidden_layers": 2,
        "a_low_rank_dim": 16,
        "v_low_rank_dim": 16,
        "gate_low_rank_dim": 16,
        "decay_low_rank_dim": 16,
    },
}
