"""The families of models that GGUF files hold: their config for mlx-lm, and names of tensors."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omlx_server.core.gguf.head import GgufHead

Config = dict[str, Any]
_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
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
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.switch_mlp.gate_proj",
    "ffn_up_exps": "mlp.switch_mlp.up_proj",
    "ffn_down_exps": "mlp.switch_mlp.down_proj",
    "attn_qkv": "self_attn.qkv_proj",
}
_NORMS_AROUND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GPT_OSS_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_WITHOUT_SUFFIX = ("attn_sinks",)


@dataclass(frozen=True, slots=True)
class Family:
    """`more` adds to the config what is the family's own. `names` are layers' names that differ.
    `norm_offset` is what llama.cpp added to the weights of norms. `permuted`: layers whose rows
    llama.cpp has put in its own order, and the key of their number of heads."""

    model_type: str
    more: Callable[["_Fields"], Config] = lambda fields: {}
    names: Mapping[str, str] = field(default_factory=dict)
    norm_offset: float = 0.0
    permuted: Mapping[str, str] = field(default_factory=dict)

    def name_of(self, tensor: str) -> str:
        """Return the name of a tensor's parameter. Raises ValueError for one that is not known."""
        stem, _, suffix = tensor.rpartition(".")
        if stem in _OUTER:
            return f"{_OUTER[stem]}.{suffix}"
        block, _, layer = stem.partition(".")
        number, _, inner = layer.partition(".")
        name = self.names.get(inner) or _LAYER.get(inner)
        if block != "blk" or not number.isdecimal() or name is None:
            raise ValueError(f"it has a tensor {tensor[:80]!r}, which is not known")
        if inner in _WITHOUT_SUFFIX:
            return f"model.layers.{number}.{name}"
        return f"model.layers.{number}.{name}.{suffix}"

    def unpermuted(self, tensor: str, array: Any, config: Config) -> Any:
        """Undo the order of rows that llama.cpp gives to q and k of some families, whose rope pairs
        neighbours. Takes an array of NumPy or MLX, and returns one.

        Rows of one head (d of them, half = d/2):
            mlx-lm      0 .. half-1 first parts   half .. d-1 second parts
            llama.cpp   first, second, first, second, ..
        """
        inner = tensor.split(".")[2] if tensor.startswith("blk.") else ""
        if inner not in self.permuted:
            return array
        heads, (rows, *others) = config[self.permuted[inner]], array.shape
        pairs = array.reshape(heads, rows // heads // 2, 2, *others)
        return pairs.swapaxes(1, 2).reshape(rows, *others)


class _Fields:
    """A file's fields below its architecture's name. Raises ValueError for one that lacks."""

    def __init__(self, fields: Mapping[str, Any], architecture: str) -> None:
        self._fields = fields
        self._architecture = architecture

    def __call__(self, name: str, default: Any = None) -> Any:
        value = self._fields.get(f"{self._architecture}.{name}", default)
        if value is None:
            raise ValueError(f"it has no {self._architecture}.{name}")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        value = self(name, default)
        if type(value) is not int or value <= 0:
            raise ValueError(f"its {self._architecture}.{name} is {str(value)[:80]}")
        return value


def family_of(head: GgufHead) -> Family:
    """Raises ValueError for a file of a family that is not known."""
    architecture = str(head.fields.get("general.architecture"))
    if architecture not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ValueError(f"its architecture is {architecture!r}; known are {known}")
    return FAMILIES[architecture]


def config_of(head: GgufHead, rope_factors: Sequence[float] = ()) -> Config:
    """Return config.json for mlx-lm. `rope_factors` are the tensor `rope_freqs.weight`. Raises
    ValueError for a file that lacks a field."""
    family, fields = family_of(head), _Fields(head.fields, head.fields["general.architecture"])
    hidden, heads = fields.size("embedding_length"), fields.size("attention.head_count")
    return {
        "model_type": family.model_type,
        "hidden_size": hidden,
        "num_hidden_layers": fields.size("block_count"),
        "intermediate_size": fields.size("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.size("attention.head_count_kv", heads),
        "head_dim": fields.size("attention.key_length", hidden // max(1, heads)),
        "dtype": "float32",
        "vocab_size": len(head.fields.get("tokenizer.ggml.tokens", ())),
        "max_position_embeddings": fields.size("context_length"),
        "rms_norm_eps": _shortest(fields("attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(fields("rope.freq_base", 10000.0)),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in head.tensors),
        **_rope_scaling(fields),
        **_llama3_scaling(rope_factors, fields),
        **family.more(fields),
    }


def _rope_scaling(fields: _Fields) -> Config:
    kind = fields("rope.scaling.type", "none")
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise ValueError(f"its rope scaling is {kind!r}")
    scaling = {"rope_type": kind, "type": kind, "factor": fields("rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = fields("rope.scaling.original_context_length")
    return {"rope_scaling": scaling}


def _llama3_scaling(factors: Sequence[float], fields: _Fields) -> Config:
    """Return the scaling of Llama 3.1 and later, of which a file has only the factors."""
    if not factors:
        return {}
    scaling = {
        "rope_type": "llama3",
        "factor": _shortest(factors[-1]),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    base, count = fields("rope.freq_base", 10000.0), len(factors)
    for i, factor in enumerate(factors):
        turns = 8192 / (2 * math.pi * base ** (i / count))
        smooth = min(1.0, max(0.0, (turns - 1) / 3))
        expected = 1 / ((1 - smooth) / scaling["factor"] + smooth)
        if abs(factor - expected) > 1e-3 * expected:
            raise ValueError("its rope_freqs.weight is not the scaling of Llama 3")
    return {"rope_scaling": scaling}


def _shortest(value: float) -> float:
    """Return the shortest decimal of the same float32: 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}") if math.isfinite(value) else value


def _mixture(fields: _Fields) -> Config:
    return {
        "num_experts": fields.size("expert_count"),
        "num_experts_per_tok": fields.size("expert_used_count"),
        "moe_intermediate_size": fields.size("expert_feed_forward_length"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }


def _gemma3(fields: _Fields) -> Config:
    window = fields.size("attention.sliding_window")
    return {
        "sliding_window": window,
        "query_pre_attn_scalar": fields.size("attention.key_length"),
    }


def _gemma2(fields: _Fields) -> Config:
    return {
        "attn_logit_softcapping": fields("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields("final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": fields.size("attention.key_length"),
    }


def _granite(fields: _Fields) -> Config:
    return {
        "embedding_multiplier": _shortest(fields("embedding_scale")),
        "residual_multiplier": _shortest(fields("residual_scale")),
        "attention_multiplier": _shortest(fields("attention.scale")),
        "logits_scaling": _shortest(fields("logit_scale")),
        "attention_bias": False,
        "mlp_bias": False,
    }


def _phi3(fields: _Fields) -> Config:
    width = fields.size("embedding_length") // fields.size("attention.head_count")
    return {"partial_rotary_factor": fields.size("rope.dimension_count", width) / width}


def _gpt_oss(fields: _Fields) -> Config:
    return {
        "intermediate_size": fields.size("expert_feed_forward_length"),
        "num_local_experts": fields.size("expert_count"),
        "num_experts_per_tok": fields.size("expert_used_count"),
        "sliding_window": fields.size("attention.sliding_window"),
    }


_PERMUTED = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
FAMILIES: Mapping[str, Family] = {  # by `general.architecture`
    "llama": Family("llama", permuted=_PERMUTED),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "qwen3moe": Family("qwen3_moe", more=_mixture),
    "gemma2": Family("gemma2", more=_gemma2, names=_NORMS_AROUND, norm_offset=1.0),
    "gemma3": Family("gemma3_text", more=_gemma3, names=_NORMS_AROUND, norm_offset=1.0),
    "gpt-oss": Family("gpt_oss", more=_gpt_oss, names=_GPT_OSS_NAMES),
    "granite": Family("granite", more=_granite, permuted=_PERMUTED),
    "phi3": Family("phi3", more=_phi3, names={"ffn_up": "mlp.gate_up_proj"}),
    "smollm3": Family("smollm3", permuted=_PERMUTED),
}
