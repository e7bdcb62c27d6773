"""Loads the prediction heads of a model, whose weights mlx-lm drops."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.architectures.pair import (
    STYLES,
    Headed,
    HeadsStyle,
    PredictionHeads,
    language_model,
)
from omlx_server.compute.architectures.special import architecture_of
from omlx_server.compute.caches import new_caches
from omlx_server.compute.codecs.registry import codec_of
from omlx_server.compute.weights.weights import lazy_weights, quantise_like

Weights = dict[str, mx.array]


def with_heads(model: nn.Module, config: Mapping[str, Any], path: Path) -> Headed | None:
    """Return the model with lazy heads; None without known ones. Raises ValueError."""
    style = STYLES.get(architecture_of(model))
    if style is None:
        return None
    stored = lazy_weights(path)
    renamed = _rename(_head_weights(stored, model), style)
    if not renamed:
        return None
    heads = _new_heads(model, style)
    weights = _convert(model, style, renamed, stored)
    if "quantization" in config:
        quantise_like(heads, weights)
    heads.load_weights(list(weights.items()))
    heads.eval()
    caches = list(enumerate(new_caches(model)))
    attention_layers = [number for number, cache in caches if not codec_of(cache).recurrent]
    return Headed(model, heads, attention_layers[-1])


def _new_heads(model: nn.Module, style: HeadsStyle) -> PredictionHeads:
    text_model = language_model(model)
    args = text_model.args
    # A layer of full attention, the last of each period.
    number = getattr(args, "full_attention_interval", args.num_hidden_layers + 1) - 1
    layer = type(text_model.model.layers[-1])(args, number)
    return PredictionHeads(layer, args.hidden_size, args.rms_norm_eps, style)


def _head_weights(stored: Weights, model: nn.Module) -> Weights:
    """Return the heads' weights, stored apart or as one more layer, without their prefix."""
    layer = f"model.layers.{language_model(model).args.num_hidden_layers}."
    for prefix in ("mtp.", layer):
        names = [name for name in stored if prefix in name]
        if names:
            return {name.partition(prefix)[2]: stored[name] for name in names}
    return {}


def _rename(weights: Weights, style: HeadsStyle) -> Weights:
    """Return weights under the names of PredictionHeads, without those of the model itself."""
    prefixes = {f"{theirs}.": f"{ours}." for ours, theirs in style.names.items()}
    renamed: Weights = {}
    for name, array in weights.items():
        if name.startswith(("embed_tokens.", "shared_head.head.")):
            continue
        prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
        if prefix is not None:
            renamed[prefixes[prefix] + name.removeprefix(prefix)] = array
        elif name.startswith(style.layer):
            renamed["layer." + name.removeprefix(style.layer)] = array
    return renamed


_AS_LAYER = "model.layers.0."  # a name under which the model's own class converts weights


def _convert(model: nn.Module, style: HeadsStyle, renamed: Weights, stored: Weights) -> Weights:
    """Convert the heads' weights as the model's class converts those of a layer."""
    as_layer = {_AS_LAYER + name.removeprefix("layer."): array for name, array in renamed.items()}
    # The class recognises an unconverted checkpoint by the shape of these.
    convolutions = {name: array for name, array in stored.items() if "conv1d.weight" in name}
    sanitized: Weights = model.sanitize({**convolutions, **as_layer})
    is_unconverted = any(array.shape[-1] != 1 for array in convolutions.values())
    converted: Weights = {}
    for full_name, array in sanitized.items():
        if _AS_LAYER not in full_name or "conv1d" in full_name:
            continue
        name = full_name.partition(_AS_LAYER)[2]
        if f"layer.{name}" in renamed or name.partition(".")[0] not in style.names:
            converted[f"layer.{name}"] = array
        elif is_unconverted and array.ndim == 1:
            # The weights of norms are around zero; the class adds one only to a layer's.
            converted[name] = array + 1.0
        else:
            converted[name] = array
    return _stack_experts(converted)


_EXPERT = re.compile(r"layer\.mlp\.experts\.(\d+)\.(.+)")


def _stack_experts(weights: Weights) -> Weights:
    """Stack the matrices of experts, of which mlx-lm has one array for all."""
    result, experts_by_name = Weights(), dict[str, dict[int, mx.array]]()
    for name, array in weights.items():
        if match := _EXPERT.fullmatch(name):
            experts_by_name.setdefault(match[2], {})[int(match[1])] = array
        else:
            result[name] = array
    for name, experts in experts_by_name.items():
        stacked = mx.stack([experts[number] for number in sorted(experts)])
        result[f"layer.mlp.switch_mlp.{name}"] = stacked
    return result
