"""llama.cpp's names of tensors, and those of mlx-lm's parameters. Where a family has no entry for a
tensor, the names that most families share are meant."""

import re
from collections.abc import Mapping

Names = Mapping[str, str]
_PARTS = re.compile(r"(?:blk\.(\d+)\.)?(.+?)(\.weight|\.bias)?")
_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "token_embd_norm": "model.embedding_norm",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_qkv": "self_attn.qkv_proj",
}
_WITHOUT_SUFFIX = ("attn_sinks", "exp_probs_b", "ssm_a", "ssm_dt", "layer_output_scale")


def parameter_name(tensor: str, names: Names) -> str | None:
    """Return the name of a tensor's parameter; `names` are the family's own."""
    parts = _PARTS.fullmatch(tensor)
    if parts is None:
        return None
    number, inner, suffix = parts.groups(default="")
    suffix = "" if inner in _WITHOUT_SUFFIX else suffix
    if not number:
        return f"{_OUTER[inner]}{suffix}" if inner in _OUTER else None
    name = names.get(inner) or _LAYER.get(inner)
    return f"model.layers.{number}.{name}{suffix}" if name else None


def layer_of(tensor: str) -> int:
    """Return the number of a tensor's layer, -1 for one outside of them."""
    parts = _PARTS.fullmatch(tensor)
    return int(parts[1]) if parts and parts[1] else -1


def _experts(block: str, router: str = "gate") -> Names:
    return {
        "ffn_gate_inp": f"{block}.{router}",
        "ffn_gate_up_exps": f"{block}.switch_mlp.gate_up_proj",
        **_gated(f"{block}.switch_mlp", "_exps"),
    }


def _gated(block: str, ending: str) -> Names:
    return {f"ffn_{part}{ending}": f"{block}.{part}_proj" for part in ("gate", "up", "down")}


EXPERTS = _experts("mlp")
MIXTRAL = _experts("block_sparse_moe")
MINIMAX = {**MIXTRAL, "exp_probs_b": "block_sparse_moe.e_score_correction_bias"}
GRANITE_MIXTURE = _experts("block_sparse_moe", "router.layer")
NORM_BEHIND = {"post_attention_norm": "post_attention_layernorm"}
NORMS_AROUND = {
    **NORM_BEHIND,
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GEMMA4 = {
    **NORMS_AROUND,
    **_gated("experts.switch_glu", "_exps"),
    "ffn_gate_up_exps": "experts.switch_glu.gate_up_proj",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "layer_output_scale": "layer_scalar",
}
GPT_OSS = {
    **NORM_BEHIND,
    "attn_sinks": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
    **_gated("mlp.experts", "_exps"),
}
PHI3 = {"ffn_up": "mlp.gate_up_proj"}
GLM4 = {
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "post_ffw_norm": "post_mlp_layernorm",
}
_SHARED = {
    **EXPERTS,
    **_gated("mlp.shared_experts", "_shexp"),
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
}
GLM4_MIXTURE = {**_SHARED, **NORM_BEHIND}
DEEPSEEK = {
    **_SHARED,
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.embed_q",
    "attn_v_b": "self_attn.unembed_out",
}
QWEN2_MIXTURE = {
    **EXPERTS,
    **_gated("mlp.shared_expert", "_shexp"),
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
QWEN35 = {
    **NORM_BEHIND,
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt": "linear_attn.dt_bias",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
QWEN35_MIXTURE = {**QWEN35, **QWEN2_MIXTURE}
QWEN3_NEXT = {**QWEN35_MIXTURE, "ssm_ba": "linear_attn.in_proj_ba"}
_LFM2 = {
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "attn_output": "self_attn.out_proj",
    **{f"shortconv.{part}": f"conv.{part}" for part in ("conv", "in_proj", "out_proj")},
}
LFM2 = {
    **_LFM2,
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
LFM2_MIXTURE = {
    **_LFM2,
    **_gated("feed_forward", ""),
    **_experts("feed_forward"),
    "exp_probs_b": "feed_forward.expert_bias",
}
STARCODER2 = {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
HUNYUAN = {
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}
