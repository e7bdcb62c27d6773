"""Tiny random models of mlx-lm as GGUF files, written by the `gguf` package."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES
from gguf.quants import dequantize, quantize
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

from omlx_server.core.gguf.families import FAMILIES
from tests.gguf_families import (
    ARCHITECTURES,
    CONFIGS,
    FFN,
    FIELDS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    LONG,
    PROPORTIONAL,
    SHORT,
)
from tests.gguf_forms import FORMS, KEY_HEADS, NORM_OFFSETS
from tests.models.tiny_gguf import TOKENS, write_tokenizer

KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "F16", "BF16", "F32")
_SUFFIXES = {
    "ssm_a": "",
    "ssm_dt": ".bias",
    "exp_probs_b": ".bias",
    "attn_sinks": ".weight",
    "layer_output_scale": ".weight",
}
_ENDS = (".weight", ".bias", ".scale")
# Rows of 16 bits would be rounded again when they are scaled.
_PLAIN = ("gate_inp", "conv", "norm", "ssm_a.", "exp_probs_b", "per_layer_token_embd")


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
    name = ARCHITECTURES.get(architecture, architecture)
    writer = GGUFWriter(path, name, split_max_tensors=most_tensors)
    _write_fields(writer, architecture)
    forms, offset = FORMS.get(architecture, {}), NORM_OFFSETS.get(architecture, 0.0)
    arrays = {name: np.array(array) for name, array in _parameters(model, architecture).items()}
    values = dict[str, mx.array]()
    for number, (name, parameter) in enumerate(_gguf_names(architecture, arrays).items()):
        array = arrays[parameter]
        is_plain = array.ndim == 1 or name.endswith(".bias") or any(p in name for p in _PLAIN)
        kind = "F32" if is_plain else kinds[number % len(kinds)]
        written, known = _stored(array, kind)
        values[parameter] = mx.array(known)
        written = forms.get(_inner(name), _same)(written)
        if name.endswith("norm.weight"):
            written = written + np.float32(offset)
        writer.add_tensor(name, written, raw_dtype=GGMLQuantizationType[kind])
    model.load_weights(list(_rejoined(values, architecture).items()))
    _close(writer)
    first = next(iter(sorted(directory.glob(f"{path.stem}*.gguf"))))
    return WrittenModel(first if most_tensors else path, model)


def _same(array: np.ndarray) -> np.ndarray:
    return array


def _inner(name: str) -> str:
    inner = name.split(".", 2)[2] if name.startswith("blk.") else ""
    return inner.removesuffix(".weight").removesuffix(".bias")


def _close(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def layers_of(architecture: str) -> int:
    return LAYERS.get(architecture, 2)


def _random_model(architecture: str, *, tied: bool) -> nn.Module:
    config = {
        "model_type": FAMILIES[architecture].model_type,
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers_of(architecture),
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": len(TOKENS),
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        **CONFIGS.get(architecture, {}),
    }
    make, arguments = _get_classes(config)
    mx.random.seed(7)
    model: Any = make(arguments.from_dict(config))
    parameters: Any = tree_flatten(model.parameters())
    spread = {name: mx.random.normal(array.shape) * 0.2 for name, array in parameters}
    model.load_weights(list(spread.items()))
    return model  # type: ignore[no-any-return]


def _parameters(model: nn.Module, architecture: str) -> dict[str, mx.array]:
    """Return all parameters, as a file has them: DeepSeek V2's kv_b_proj is two tensors, two of
    Qwen 3 Next are one."""
    parameters: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    if architecture == "deepseek2":
        for name in [name for name in parameters if "kv_b_proj" in name]:
            heads = parameters.pop(name).reshape(HEADS, 64, 64)
            parameters[name.replace("kv_b_proj", "embed_q")] = heads[:, :32].swapaxes(1, 2)
            parameters[name.replace("kv_b_proj", "unembed_out")] = heads[:, 32:]
    if architecture == "qwen3next":
        for name in [name for name in parameters if "in_proj_b." in name]:
            parts = [parameters.pop(name), parameters.pop(name.replace("_b.", "_a."))]
            heads = mx.concatenate([part.reshape(KEY_HEADS, -1, HIDDEN) for part in parts], axis=1)
            parameters[name.replace("_b.", "_ba.")] = heads.reshape(-1, HIDDEN)
    if architecture == "gemma4":
        for name in [name for name in parameters if "switch_glu.gate_proj" in name]:
            parts = [parameters.pop(name), parameters.pop(name.replace("gate", "up"))]
            parameters[name.replace("gate", "gate_up")] = mx.concatenate(parts, axis=1)
    return parameters


def _rejoined(values: dict[str, mx.array], architecture: str) -> dict[str, mx.array]:
    """Return the values of the model's own parameters."""
    if architecture == "deepseek2":
        for name in [name for name in values if "embed_q" in name]:
            value = values.pop(name.replace("embed_q", "unembed_out"))
            joined = mx.concatenate([values.pop(name).swapaxes(1, 2), value], axis=1)
            values[name.replace("embed_q", "kv_b_proj")] = joined.reshape(-1, 64)
    if architecture == "qwen3next":
        for name in [name for name in values if "in_proj_ba." in name]:
            heads = values.pop(name).reshape(KEY_HEADS, 2, -1, HIDDEN)
            values[name.replace("_ba.", "_b.")] = heads[:, 0].reshape(-1, HIDDEN)
            values[name.replace("_ba.", "_a.")] = heads[:, 1].reshape(-1, HIDDEN)
    if architecture == "gemma4":
        for name in [name for name in values if "gate_up" in name]:
            gate, up = mx.split(values.pop(name), 2, axis=1)
            values |= {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}
    return values


def _gguf_names(architecture: str, parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameter of each tensor, by llama.cpp's names."""
    name = ARCHITECTURES.get(architecture, architecture)
    [arch] = [key for key, arch_name in MODEL_ARCH_NAMES.items() if arch_name == name]
    stems = [TENSOR_NAMES[tensor] for tensor in MODEL_TENSORS[arch]]
    layers = range(layers_of(architecture))
    family, names = FAMILIES[architecture], dict[str, str]()
    prefix = "language_model." if "language_model" in next(iter(parameters)) else ""
    for stem in dict.fromkeys(stem.format(bid=layer) for layer in layers for stem in stems):
        only = _SUFFIXES.get(_inner(stem))
        for tensor in (stem + end for end in ([only] if only is not None else _ENDS)):
            try:
                parameter = prefix + family.name_of(tensor)
            except ValueError:
                continue
            if parameter in parameters:
                names[tensor] = parameter
    assert set(names.values()) == set(parameters)
    return names


def _stored(array: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return an array as it is written, and its values."""
    if kind == "F32":
        return array, array
    packed = quantize(array, GGMLQuantizationType[kind])
    return packed, dequantize(packed, GGMLQuantizationType[kind]).astype(np.float32)


def _write_fields(writer: GGUFWriter, architecture: str) -> None:
    name = ARCHITECTURES.get(architecture, architecture)
    fields = {
        "context_length": 512,
        "embedding_length": HIDDEN,
        "block_count": layers_of(architecture),
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "rope.freq_base": 10000.0,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **FIELDS.get(architecture, {}),
    }
    for key, value in fields.items():
        _add(writer, f"{name}.{key}", value)
    if architecture == "phi3":
        for part, factors in (("long", LONG), ("short", SHORT)):
            writer.add_tensor(f"rope_factors_{part}.weight", np.array(factors, np.float32))
    if architecture == "gemma4":
        writer.add_tensor("rope_freqs.weight", np.array(PROPORTIONAL, np.float32))
    write_tokenizer(writer)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)
