"""Converts the starter's GGUF file to a model directory in MLX layout, with float32 weights, all in
memory.

`mx.load` is not used: it rounds, and misreads some quantisations without an error.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from omlx_server.core.gguf.families import Config, family_of
from omlx_server.models.gguf.file import Array, GgufFile, read_gguf
from omlx_server.models.gguf.tokenizer import build_tokenizer, end_ids, tokenizer_config
from omlx_server.models.progress import ProgressListener


def convert(
    gguf: Path, out: Path, sampling: Mapping[str, float], progress: ProgressListener
) -> None:
    """Write config, weights and the tokenizer's files into the existing directory `out`.
    `sampling` are the makers' values."""
    file = read_gguf(gguf)
    fields = file.head.fields
    config = _model_config(fields)
    build_tokenizer(fields).save(str(out / "tokenizer.json"))
    context = config["max_position_embeddings"]
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    generation = {**ids, "eos_token_id": end_ids(fields), **sampling}
    _write_json(out / "tokenizer_config.json", tokenizer_config(fields, context))
    _write_json(out / "generation_config.json", generation)
    _write_json(out / "config.json", config)
    _save(_weights(file, config, progress), out / "model.safetensors")


def _model_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    hidden = fields["llama.embedding_length"]
    heads = fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": fields["llama.block_count"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields.get("llama.rope.dimension_count", hidden // heads),
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": _shortest(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(fields["llama.rope.freq_base"]),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def _weights(file: GgufFile, config: Config, progress: ProgressListener) -> dict[str, Array]:
    family, weights = family_of(file.head), dict[str, Array]()
    places = file.head.tensors
    for done, place in enumerate(places, start=1):
        weight = np.ascontiguousarray(file.values(place))
        if heads := family.heads_of(place.name, config):
            weight = _unpermuted(weight, heads)
        weights[family.name_of(place.name)] = weight
        progress.update("convert", done, len(places))
    return weights


def _unpermuted(weight: Array, n_heads: int) -> Array:
    """Undo the row order that llama.cpp gives to q and k, whose rope pairs neighbours.

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
    """Return the shortest decimal of the same float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
