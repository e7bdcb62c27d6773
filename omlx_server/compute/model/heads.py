"""Loads the prediction heads of a model, whose weights mlx-lm drops."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.architectures.heads import (
    STYLES,
    Headed,
    HeadsStyle,
    PredictionHeads,
    language_model,
)
from omlx_server.compute.architectures.special import architecture_of
from omlx_server.compute.caches import new_caches
from omlx_server.compute.codecs.registry import codec_of
from omlx_server.compute.weights.files import lazy_weights
from omlx_server.compute.weights.filling import quantise_like

Weights = dict[str, mx.array]


def with_heads(model: nn.Module, config: Mapping[str, Any], path: Path) -> Headed | None:
    """Return the model with lazy heads; None without known ones. Raises ValueError."""
    style = STYLES.get(architecture_of(model))
    if style is None:
        return None
    stored = lazy_weights(path)
    named = _rename(_head_weights(stored, model), style)
    if not named:
        return None
    heads = _new_heads(model, style)
    weights = _convert(model, style, named, stored)
    if "quantization" in config:
        quantise_like(heads, weights)
    heads.load_weights(list(weights.items()))
    heads.eval()
    caches = list(enumerate(new_caches(model)))
    full = [number for number, cache in caches if not codec_of(cache).recurrent]
    return Headed(model, heads, full[-1])


def _new_heads(model: nn.Module, style: HeadsStyle) -> PredictionHeads:
    body = language_model(model)
    args = body.args
    # A layer of full attention, the last of each period.
    number = getattr(args, "full_attention_interval", args.num_hidden_layers + 1) - 1
    layer = type(body.model.layers[-1])(args, number)
    return PredictionHeads(layer, args.hidden_size, args.rms_norm_eps, style)


def _head_weights(stored: Weights, model: nn.Module) -> Weights:
    layer = f"layers.{language_model(model).args.num_hidden_layers}."
    for start in ("mtp.", f"model.{layer}"):
        heads = {name.partition(start)[2]: array for name, array in stored.items() if start in name}
        if heads:
            return heads
    return {}


def _rename(weights: Weights, style: HeadsStyle) -> Weights:
    prefixes = {f"{theirs}.": f"{ours}." for ours, theirs in style.names.items()}
    renamed: Weights = {}
    for name, array in weights.items():
        if name.startswith(("embed_tokens.", "shared_head.head.")):
            continue
        start = next((start for start in prefixes if name.startswith(start)), None)
        if start is not None:
            renamed[prefixes[start] + name[len(start) :]] = array
        elif name.startswith(style.layer):
            renamed["layer." + name[len(style.layer) :]] = array
    return renamed


_AS_LAYER = "model.layers.0."  # a name under which the model's own class converts weights


def _convert(model: nn.Module, style: HeadsStyle, named: Weights, stored: Weights) -> Weights:
    renamed = {_AS_LAYER + name.removeprefix("layer."): array for name, array in named.items()}
    # Its class recognises unconverted weights by these.
    signs = {name: array for name, array in stored.items() if "conv1d.weight" in name}
    sane: Weights = model.sanitize({**signs, **renamed})
    inside = {
        name.partition(_AS_LAYER)[2]: array
        for name, array in sane.items()
        if _AS_LAYER in name and "conv1d" not in name
    }
    shifted = any(array.shape[-1] != 1 for array in signs.values())
    converted: Weights = {}
    for name, array in inside.items():
        if f"layer.{name}" in named or name.partition(".")[0] not in style.names:
            converted[f"layer.{name}"] = array
        else:
            converted[name] = array + 1.0 if shifted and array.ndim == 1 else array
    return _stack_experts(converted)


_EXPERT = re.compile(r"layer\.mlp\.experts\.(\d+)\.(.+)")


def _stack_experts(weights: Weights) -> Weights:
    stacked, apart = Weights(), dict[str, dict[int, mx.array]]()
    for name, array in weights.items():
        if match := _EXPERT.fullmatch(name):
            apart.setdefault(match[2], {})[int(match[1])] = array
        else:
            stacked[name] = array
    for part, experts in apart.items():
        stacked[f"layer.mlp.switch_mlp.{part}"] = mx.stack(
            [experts[key] for key in sorted(experts)]
        )
    return stacked
