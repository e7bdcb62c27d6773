"""Tiny random models of mlx-lm as GGUF files, written by the `gguf` package."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

from omlx_server.core.gguf.families import FAMILIES
from tests.models.tiny_gguf import TOKENS, permuted, write_tokenizer

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN = 128, 4, 2, 32, 96
PERMUTED = ("llama", "granite", "smollm3")
KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "F16", "BF16", "F32")
_OUTER = ("token_embd", "output_norm", "output")
_INNER = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm",
    "ffn_norm", "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps",
    "ffn_down_exps", "post_attention_norm", "post_ffw_norm", "attn_qkv", "attn_sinks",
)  # fmt: skip
_MORE_FIELDS: Mapping[str, Mapping[str, float]] = {
    "gpt-oss": {
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_feed_forward_length": 64,
        "attention.sliding_window": 8,
    },
    "gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "granite": {
        "embedding_scale": 12.0,
        "residual_scale": 0.22,
        "attention.scale": 0.0625,
        "logit_scale": 8.0,
    },
    "phi3": {"rope.dimension_count": HEAD_DIM // 2},
    "qwen3moe": {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64},
    "gemma3": {"attention.sliding_window": 8},
}
_MORE_CONFIG: Mapping[str, Mapping[str, Any]] = {
    "gpt-oss": {
        "intermediate_size": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
    },
    "gemma2": {
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": HEAD_DIM,
    },
    "granite": {
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.0625,
        "logits_scaling": 8.0,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "phi3": {"partial_rotary_factor": 0.5},
    "qwen3moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
    "gemma3": {"sliding_window": 8, "query_pre_attn_scalar": HEAD_DIM},
}


@dataclass(frozen=True)
class WrittenModel:
    """A file, and mlx-lm's model of the same values in float32."""

    file: Path
    model: nn.Module


def write_model(
    directory: Path,
    architecture: str,
    kinds: Sequence[str] = KINDS,
    *,
    tied: bool = False,
    most_tensors: int = 0,
) -> WrittenModel:
    """Write a file, or parts of `most_tensors`."""
    directory.mkdir(parents=True, exist_ok=True)
    model = _random_model(architecture, tied=tied)
    path = directory / f"tiny-{architecture}.gguf"
    writer = GGUFWriter(path, architecture, split_max_tensors=most_tensors)
    _write_fields(writer, architecture)
    parameters: Any = dict(tree_flatten(model.parameters()))
    values = dict[str, mx.array]()
    for number, (name, parameter) in enumerate(_gguf_names(architecture, parameters).items()):
        array = np.array(parameters[parameter])
        is_plain = array.ndim == 1 or name.endswith(".bias") or "gate_inp" in name
        kind = "F32" if is_plain else kinds[number % len(kinds)]
        written, known = _stored(array, kind)
        values[parameter] = mx.array(known)
        inner = name.split(".")[2] if name.startswith("blk.") else ""
        if architecture in PERMUTED and inner in ("attn_q", "attn_k"):
            written = permuted(written, HEADS if inner == "attn_q" else KV_HEADS)
        if name.endswith("norm.weight"):
            written = written + np.float32(architecture in ("gemma2", "gemma3"))
        writer.add_tensor(name, written, raw_dtype=GGMLQuantizationType[kind])
    model.load_weights(list(values.items()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first = next(iter(sorted(directory.glob(f"{path.stem}*.gguf"))))
    return WrittenModel(first if most_tensors else path, model)


def _layers(architecture: str) -> int:
    return 6 if architecture == "gemma3" else 2  # every sixth layer of Gemma has no window


def _random_model(architecture: str, *, tied: bool) -> nn.Module:
    config = {
        "model_type": FAMILIES[architecture].model_type,
        "hidden_size": HIDDEN,
        "num_hidden_layers": _layers(architecture),
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": len(TOKENS),
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        **_MORE_CONFIG.get(architecture, {}),
    }
    make, arguments = _get_classes(config)
    mx.random.seed(7)
    model: Any = make(arguments.from_dict(config))
    parameters: Any = tree_flatten(model.parameters())
    spread = {name: mx.random.normal(array.shape) * 0.2 for name, array in parameters}
    model.load_weights(list(spread.items()))
    return model  # type: ignore[no-any-return]


def _gguf_names(architecture: str, parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameter of each tensor, by llama.cpp's names."""
    stems = [
        *_OUTER,
        *(f"blk.{layer}.{inner}" for layer in range(_layers(architecture)) for inner in _INNER),
    ]
    family, names = FAMILIES[architecture], dict[str, str]()
    for name in (f"{stem}.{suffix}" for stem in stems for suffix in ("weight", "bias")):
        try:
            parameter = family.name_of(name)
        except ValueError:
            continue
        if parameter in parameters:
            names[name] = parameter
    assert set(names.values()) == set(parameters)
    return names


def _stored(array: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return an array as it is written, and its values."""
    if kind == "F32":
        return array, array
    packed = quantize(array, GGMLQuantizationType[kind])
    return packed, dequantize(packed, GGMLQuantizationType[kind]).astype(np.float32)


def _write_fields(writer: GGUFWriter, architecture: str) -> None:
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(_layers(architecture))
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, value in _MORE_FIELDS.get(architecture, {}).items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{architecture}.{name}", value)
    write_tokenizer(writer)
