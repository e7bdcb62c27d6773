"""Parts of mlx-lm's config.json that one family only has, from a GGUF file's fields."""

import math

from omlx_server.core.gguf.fields import Config, Fields
from omlx_server.core.gguf.rope import deepseek_yarn, long_rope, rope_scaling, turned_pairs


def llama(fields: Fields) -> Config:
    """mlx-lm's class has no windows in all layers, as Mistral's first model has: within one,
    nothing differs."""
    context = fields.size("context_length")
    window = fields.size("attention.sliding_window", context)
    return {"max_position_embeddings": min(context, window)}


def qwen3_mixture(fields: Fields) -> Config:
    return {
        "num_experts": fields.size("expert_count"),
        "num_experts_per_tok": fields.size("expert_used_count"),
        "moe_intermediate_size": fields.size("expert_feed_forward_length"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }


def qwen2_mixture(fields: Fields) -> Config:
    shared = fields.size("expert_shared_feed_forward_length")
    return {**qwen3_mixture(fields), "shared_expert_intermediate_size": shared}


def qwen35(fields: Fields) -> Config:
    heads = fields.size("ssm.time_step_rank")
    rope = {
        "type": "default",
        **(rope_scaling(fields) or {}),
        "mrope_section": fields("rope.dimension_sections", [11, 11, 10])[:3],
        "rope_theta": fields.number("rope.freq_base"),
        "partial_rotary_factor": _rotary_part(fields),
    }
    return {
        "linear_num_value_heads": heads,
        "linear_num_key_heads": fields.size("ssm.group_count"),
        "linear_key_head_dim": fields.size("ssm.state_size"),
        "linear_value_head_dim": fields.size("ssm.inner_size") // heads,
        "linear_conv_kernel_dim": fields.size("ssm.conv_kernel"),
        "full_attention_interval": fields.size("full_attention_interval", 4),
        "rope_parameters": rope,
    }


def qwen35_mixture(fields: Fields) -> Config:
    return {**qwen35(fields), **qwen2_mixture(fields)}


def local_experts(fields: Fields) -> Config:
    return {
        "num_local_experts": fields.size("expert_count"),
        "num_experts_per_tok": fields.size("expert_used_count"),
    }


def minimax(fields: Fields) -> Config:
    return {
        **local_experts(fields),
        "shared_intermediate_size": 0,
        "rotary_dim": fields.size("rope.dimension_count"),
    }


def mistral3(fields: Fields) -> Config:
    context = fields.size("context_length")
    rope = {
        "type": "default",
        **(rope_scaling(fields) or {}),
        "rope_theta": fields.number("rope.freq_base"),
        "original_max_position_embeddings": fields.size(
            "rope.scaling.original_context_length", context
        ),
        "llama_4_scaling_beta": fields.number("attention.temperature_scale", 0.0),
        "mscale": 1.0,
        "mscale_all_dim": fields.number("rope.scaling.yarn_log_multiplier", 0.0),
    }
    return {"rope_parameters": rope}


def gpt_oss(fields: Fields) -> Config:
    return {
        **local_experts(fields),
        "intermediate_size": fields.size("expert_feed_forward_length"),
        "sliding_window": fields.size("attention.sliding_window"),
    }


def gemma3(fields: Fields) -> Config:
    window = fields.size("attention.sliding_window")
    return {"sliding_window": window, "query_pre_attn_scalar": fields.size("attention.key_length")}


def gemma4(fields: Fields) -> Config:
    windows, keys = fields("attention.sliding_window_pattern"), fields("attention.head_count_kv")
    widths, full = fields("feed_forward_length"), fields.size("attention.key_length")
    widths = widths if isinstance(widths, list) else [widths]
    keys = keys if isinstance(keys, list) else [keys] * len(windows)
    full_layer = windows.index(False)
    return {
        "layer_types": [f"{'sliding' if window else 'full'}_attention" for window in windows],
        "head_dim": fields.size("attention.key_length_swa"),
        "global_head_dim": full,
        "num_key_value_heads": keys[windows.index(True)],
        "num_global_key_value_heads": keys[full_layer],
        "attention_k_eq_v": not fields.has(f"blk.{full_layer}.attn_v.weight"),
        "num_kv_shared_layers": fields("attention.shared_kv_layers", 0),
        "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] > widths[0],
        "hidden_size_per_layer_input": fields("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": fields.vocabulary,
        "sliding_window": fields.size("attention.sliding_window"),
        "final_logit_softcapping": fields("final_logit_softcapping", 30.0),
        "rope_parameters": {
            "full_attention": {
                "type": "proportional",
                "rope_theta": fields.number("rope.freq_base"),
                "partial_rotary_factor": 2 * turned_pairs(fields) / full,
            },
            "sliding_attention": {
                "type": "default",
                "rope_theta": fields.number("rope.freq_base_swa", 10000.0),
            },
        },
        **_gemma4_mixture(fields),
    }


def _gemma4_mixture(fields: Fields) -> Config:
    if not fields("expert_count", 0):
        return {"enable_moe_block": False}
    return {
        "enable_moe_block": True,
        "num_experts": fields.size("expert_count"),
        "top_k_experts": fields.size("expert_used_count"),
        "moe_intermediate_size": fields.size("expert_feed_forward_length"),
    }


def gemma2(fields: Fields) -> Config:
    return {
        "attn_logit_softcapping": fields("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields("final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": fields.size("attention.key_length"),
    }


def granite(fields: Fields) -> Config:
    return {
        "embedding_multiplier": fields.number("embedding_scale"),
        "residual_multiplier": fields.number("residual_scale"),
        "attention_multiplier": fields.number("attention.scale"),
        "logits_scaling": fields.number("logit_scale"),
    }


def granite_mixture(fields: Fields) -> Config:
    return {**granite(fields), **local_experts(fields)}


def minicpm(fields: Fields) -> Config:
    hidden, layers = fields.size("embedding_length"), fields.size("block_count")
    residual = fields("residual_scale", 1.4 / math.sqrt(layers))
    return {
        "scale_emb": fields.number("embedding_scale", 12.0),
        "scale_depth": residual * math.sqrt(layers),
        "dim_model_base": hidden / fields("logit_scale", hidden / 256),
        **long_rope(fields),
    }


def _rotary_part(fields: Fields) -> float:
    heads = fields.size("attention.head_count")
    width = fields.size("attention.key_length", fields.size("embedding_length") // heads)
    return fields.size("rope.dimension_count", width) / width


def phi3(fields: Fields) -> Config:
    return {"partial_rotary_factor": _rotary_part(fields), **long_rope(fields)}


def glm4(fields: Fields) -> Config:
    return {"partial_rotary_factor": _rotary_part(fields)}


def glm4_mixture(fields: Fields) -> Config:
    return {
        "partial_rotary_factor": _rotary_part(fields),
        "use_qk_norm": fields.has("blk.0.attn_q_norm.weight"),
        **_shared_mixture(fields),
    }


def _shared_mixture(fields: Fields) -> Config:
    return {
        "n_routed_experts": fields.size("expert_count"),
        "num_experts_per_tok": fields.size("expert_used_count"),
        "n_shared_experts": fields("expert_shared_count", 0) or None,
        "moe_intermediate_size": fields.size("expert_feed_forward_length"),
        "routed_scaling_factor": fields.number("expert_weights_scale", 1.0) or 1.0,
        "norm_topk_prob": fields("expert_weights_norm", False),
        "first_k_dense_replace": fields("leading_dense_block_count", 0),
        "n_group": fields.size("expert_group_count", 1),
        "topk_group": fields.size("expert_group_used_count", 1),
    }


def deepseek2(fields: Fields) -> Config:
    # Files of before 2025 have no `key_length_mla`: their `key_length` is that of a whole head.
    if fields("attention.temperature_scale", 0.0):
        raise ValueError("its attention has a temperature, which mlx-lm's class does not have")
    rotary = fields.size("rope.dimension_count")
    mla = "_mla" if fields.has_field("attention.key_length_mla") else ""
    key = fields.size(f"attention.key_length{mla}")
    lora = fields.size("attention.q_lora_rank") if fields.has("blk.0.attn_q_a.weight") else None
    return {
        "q_lora_rank": lora,
        "kv_lora_rank": fields.size("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotary,
        "qk_nope_head_dim": key - rotary,
        "v_head_dim": fields.size(f"attention.value_length{mla}"),
        **_shared_mixture(fields),
        **_group_method(fields),
        **deepseek_yarn(fields),
    }


def deepseek3(fields: Fields) -> Config:
    return {**deepseek2(fields), "topk_method": "noaux_tc"}


def _group_method(fields: Fields) -> Config:
    groups = fields.size("expert_group_count", 1)
    return {"topk_method": "group_limited_greedy" if groups > 1 else "greedy"}


def lfm2(fields: Fields) -> Config:
    hidden, heads = fields.size("embedding_length"), fields("attention.head_count_kv")
    return {
        "norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "conv_bias": False,
        "conv_L_cache": fields.size("shortconv.l_cache"),
        "block_dim": hidden,
        "block_multiple_of": 1,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["full_attention" if n_heads else "conv" for n_heads in heads],
    }


def lfm2_mixture(fields: Fields) -> Config:
    dense = fields("leading_dense_block_count", 0)
    return {
        **lfm2(fields),
        **qwen3_mixture(fields),
        "num_dense_layers": dense,
        "use_expert_bias": fields.has(f"blk.{dense}.exp_probs_b.bias"),
    }


def cohere(fields: Fields) -> Config:
    return {
        "layer_norm_eps": fields.number("attention.layer_norm_epsilon"),
        "logit_scale": fields.number("logit_scale"),
        "layer_norm_bias": False,
        "use_qk_norm": fields.has("blk.0.attn_q_norm.weight"),
    }


def cohere2(fields: Fields) -> Config:
    window = fields.size("attention.sliding_window")
    return {**cohere(fields), "sliding_window": window, "sliding_window_pattern": 4}


def starcoder2(fields: Fields) -> Config:
    return {"norm_epsilon": fields.number("attention.layer_norm_epsilon")}


def nemotron(fields: Fields) -> Config:
    return {
        "hidden_act": "relu2",
        "norm_eps": fields.number("attention.layer_norm_epsilon"),
        "partial_rotary_factor": _rotary_part(fields),
    }


def exaone4(fields: Fields) -> Config:
    if not fields.has_field("attention.sliding_window"):
        return {"sliding_window": None, "sliding_window_pattern": None}
    window = fields.size("attention.sliding_window")
    return {"sliding_window": window, "sliding_window_pattern": "LLLG"}


def ernie(fields: Fields) -> Config:
    return {"use_bias": fields.has("blk.0.attn_q.bias")}


def seed_oss(fields: Fields) -> Config:
    return {"attention_out_bias": fields.has("blk.0.attn_output.bias")}


def hunyuan(fields: Fields) -> Config:
    return {"use_qk_norm": fields.has("blk.0.attn_q_norm.weight")}
