"""Converts a llama-architecture GGUF file to a model directory in MLX layout, with float32 weights.

Works on files only; runs in whichever thread calls it, and holds all weights in memory once.
`mx.load` is not used: it rounds, and misreads some quantisations without an error.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from omlx_server.models.gguf.fields import GgufFields, not_convertible
from omlx_server.models.gguf.file import Array, GgufFile, read_gguf
from omlx_server.models.gguf.tokenizer import build_tokenizer, end_ids, tokenizer_config
from omlx_server.models.progress import ProgressListener, Silent

OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def convert(gguf: Path, out: Path, progress: ProgressListener | None = None) -> None:
    """Write config, weights and the tokenizer's files into the existing directory `out`. Raises
    ModelUnavailable for a file that is damaged or of an unknown kind."""
    try:
        file = read_gguf(gguf)
    except ValueError as error:
        raise not_convertible(f"{gguf.name} can't be read: {error}") from error
    fields = GgufFields(file.fields)
    config = model_config(fields, tied="output.weight" not in {t.name for t in file.tensors})
    build_tokenizer(fields).save(str(out / "tokenizer.json"))
    context = config["max_position_embeddings"]
    _write_json(out / "tokenizer_config.json", tokenizer_config(fields, context))
    _write_json(out / "generation_config.json", generation_config(config, fields))
    _write_json(out / "config.json", config)
    weights = read_weights(file, config, progress or Silent())
    _save(weights, out / "model.safetensors")


def model_config(fields: GgufFields, *, tied: bool) -> dict[str, Any]:
    """config.json as mlx-lm's llama wants it."""
    if (arch := fields.text("general.architecture")) != "llama":
        raise not_convertible(f"its architecture is {arch!r}, only 'llama' is known")
    if "llama.rope.scaling.type" in fields or "llama.expert_count" in fields:
        raise not_convertible("scaled rotary positions and experts are not known")
    hidden = fields.integer("llama.embedding_length")
    heads = fields.integer("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": fields.integer("llama.block_count"),
        "intermediate_size": fields.integer("llama.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer("llama.attention.head_count_kv", heads),
        "head_dim": fields.integer("llama.rope.dimension_count", hidden // heads),
        "vocab_size": len(fields.sequence("tokenizer.ggml.tokens")),
        "max_position_embeddings": fields.integer("llama.context_length"),
        "rms_norm_eps": _shortest(fields.number("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(fields.number("llama.rope.freq_base")),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": fields.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.integer("tokenizer.ggml.padding_token_id"),
    }


def generation_config(config: dict[str, Any], fields: GgufFields) -> dict[str, Any]:
    return {
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": end_ids(fields),
        "pad_token_id": config["pad_token_id"],
    }


def read_weights(
    file: GgufFile, config: dict[str, Any], progress: ProgressListener
) -> dict[str, Array]:
    """Every tensor in float32, under its Hugging Face name and with its Hugging Face row order."""
    heads = {
        "self_attn.q_proj.weight": config["num_attention_heads"],
        "self_attn.k_proj.weight": config["num_key_value_heads"],
    }
    weights: dict[str, Array] = {}
    for done, tensor in enumerate(file.tensors, start=1):
        name = tensor_name(tensor.name)
        weight = np.ascontiguousarray(tensor.values())
        suffix = name.split(".", 3)[-1]
        weights[name] = unpermute(weight, heads[suffix]) if suffix in heads else weight
        progress.update("convert", done, len(file.tensors))
    return weights


def tensor_name(name: str) -> str:
    """Hugging Face's name of a tensor, from llama.cpp's. Raises ModelUnavailable for an unknown
    one."""
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    parts = name.split(".", 2)
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}"
    raise not_convertible(f"its tensor {name!r} is not known")


def unpermute(weight: Array, n_heads: int) -> Array:
    """Undoes the row order that llama.cpp gives to q and k, whose rope pairs neighbours.

    Rows of one head (d of them, half = d/2):
        Hugging Face   0 .. half-1 first parts   half .. d-1 second parts
        llama.cpp      first, second, first, second, ..
    """
    rows, columns = weight.shape
    pairs = weight.reshape(n_heads, rows // n_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _save(weights: dict[str, Array], path: Path) -> None:
    path.touch()
    mode = path.stat().st_mode
    save_file(weights, path, metadata={"format": "mlx"})
    # safetensors replaces the file with one that only its owner may read.
    path.chmod(mode)


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 rather than 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
