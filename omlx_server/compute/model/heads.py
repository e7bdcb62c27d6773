"""Loads the prediction heads of a model, whose weights mlx-lm drops."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import infer_quant_config

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

Weights = dict[str, mx.array]


def with_heads(model: nn.Module, config: Mapping[str, Any], path: Path) -> Headed | None:
    """Return the model with the heads in its directory, as lazy arrays; None where it has no known
    ones. Raises ValueError for weights that don't fit."""
    style = STYLES.get(architecture_of(model))
    if style is None:
        return None
    stored = lazy_weights(path)
    named = _named(_of_heads(stored, model), style)
    if not named:
        return None
    heads = _made(model, style)
    weights = _sanitized(model, style, named, stored)
    if "quantization" in config:
        _quantise(heads, weights)
    heads.load_weights(list(weights.items()))
    heads.eval()
    caches = list(enumerate(new_caches(model)))
    full = [number for number, cache in caches if not codec_of(cache).recurrent]
    return Headed(model, heads, full[-1])


def _made(model: nn.Module, style: HeadsStyle) -> PredictionHeads:
    body = language_model(model)
    args = body.args
    # Of several kinds of layers, one of full attention: the last of each period.
    number = getattr(args, "full_attention_interval", args.num_hidden_layers + 1) - 1
    layer = type(body.model.layers[-1])(args, number)
    return PredictionHeads(layer, args.hidden_size, args.rms_norm_eps, style)


def _of_heads(stored: Weights, model: nn.Module) -> Weights:
    """Return the weights of the first head, without their prefix."""
    layer = f"layers.{language_model(model).args.num_hidden_layers}."
    for start in ("mtp.", f"model.{layer}"):
        found = {name.partition(start)[2]: array for name, array in stored.items() if start in name}
        if found:
            return found
    return {}


def _named(weights: Weights, style: HeadsStyle) -> Weights:
    """Rename weights as in `PredictionHeads`, without the embedding and the head, which are the
    model's."""
    own = {f"{theirs}.": f"{ours}." for ours, theirs in style.names.items()}
    found: Weights = {}
    for name, array in weights.items():
        if name.startswith(("embed_tokens.", "shared_head.head.")):
            continue
        start = next((start for start in own if name.startswith(start)), None)
        if start is not None:
            found[own[start] + name[len(start) :]] = array
        elif name.startswith(style.layer):
            found["layer." + name[len(style.layer) :]] = array
    return found


_AS_LAYER = "model.layers.0."
"""Under this name the model's own class makes a layer's weights what it computes with."""


def _sanitized(model: nn.Module, style: HeadsStyle, named: Weights, stored: Weights) -> Weights:
    """Convert weights as the model's own class does: experts stacked, norms around one."""
    renamed = {_AS_LAYER + name.removeprefix("layer."): array for name, array in named.items()}
    # By these its class sees whether weights are as they were trained.
    signs = {name: array for name, array in stored.items() if "conv1d.weight" in name}
    sane: Weights = model.sanitize({**signs, **renamed})
    inside = {
        name.partition(_AS_LAYER)[2]: array
        for name, array in sane.items()
        if _AS_LAYER in name and "conv1d" not in name
    }
    shifted = any(array.shape[-1] != 1 for array in signs.values())
    found: Weights = {}
    for name, array in inside.items():
        if f"layer.{name}" in named or name.partition(".")[0] not in style.names:
            found[f"layer.{name}"] = array
        else:
            found[name] = array + 1.0 if shifted and array.ndim == 1 else array
    return _stacked(found)


_EXPERT = re.compile(r"layer\.mlp\.experts\.(\d+)\.(.+)")


def _stacked(weights: Weights) -> Weights:
    """Stack the experts that a class leaves apart because its own layers have none."""
    found, apart = Weights(), dict[str, dict[int, mx.array]]()
    for name, array in weights.items():
        if match := _EXPERT.fullmatch(name):
            apart.setdefault(match[2], {})[int(match[1])] = array
        else:
            found[name] = array
    for part, experts in apart.items():
        found[f"layer.mlp.switch_mlp.{part}"] = mx.stack([experts[key] for key in sorted(experts)])
    return found


def _quantise(heads: PredictionHeads, weights: Weights) -> None:
    """Quantise the layers whose weights are, to their bits."""

    def packed(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if not hasattr(module, "to_quantized") or f"{path}.scales" not in weights:
            return False
        found: dict[str, Any] = infer_quant_config(path, module, weights)
        return found

    nn.quantize(heads, class_predicate=packed)
