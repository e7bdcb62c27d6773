"""Puts weights into a module, all of them or none. Mlx thread."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import infer_quant_config

from omlx_server.compute.weights.reading import reading
from omlx_server.core.work import Work
from omlx_server.errors import ModelUnavailable

# Weights with these prefixes may be left over.
_UNUSED = ("cls.", "lm_head.", "pooler.", "classifier.", "embeddings.position_ids")
_SHOWN = 4


def filling(module: nn.Module, weights: Mapping[str, mx.array], source: Path) -> Work[None]:
    """Put `weights` into the module, in slices. Raises ModelUnavailable if they don't fit."""
    parameters: Any = tree_flatten(module.parameters())
    wanted = {name: array.shape for name, array in parameters}
    used = {name: weights[name] for name in wanted if name in weights}
    unused = [n for n in weights if n not in wanted and not n.startswith(_UNUSED)]
    shapes = [
        f"{name} {array.shape} instead of {wanted[name]}"
        for name, array in used.items()
        if array.shape != wanted[name]
    ]
    _refuse("has no weights called", [name for name in wanted if name not in weights], source)
    _refuse("has weights of another shape:", shapes, source)
    _refuse("has weights that this architecture does not know:", unused, source)
    module.load_weights(list(used.items()))
    module.eval()
    yield
    yield from reading(module, source)


def quantise_like(module: nn.Module, weights: Mapping[str, mx.array]) -> None:
    """Quantise the layers that have scales in `weights`, in the format of these; not where they
    fit no layer, which `filling` refuses."""
    arrays = dict(weights)

    def packed(path: str, layer: nn.Module) -> bool | dict[str, Any]:
        scales = arrays.get(f"{path}.scales")
        if scales is None or not hasattr(layer, "to_quantized") or not _fit(path, layer):
            return False
        config: dict[str, Any] = infer_quant_config(path, layer, arrays)
        return config

    def _fit(path: str, layer: Any) -> bool:
        weight, scales = arrays.get(f"{path}.weight"), arrays[f"{path}.scales"]
        if weight is None or scales.ndim != layer.weight.ndim:
            return False
        groups, width = int(scales.shape[-1]), int(layer.weight.shape[-1])
        return 0 < groups <= width and width % groups == 0

    nn.quantize(module, class_predicate=packed)


def _refuse(what: str, names: list[str], source: Path) -> None:
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise ModelUnavailable(f"{source} {what} {', '.join(sorted(names)[:_SHOWN])}{more}")
