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

# Stored weights with these prefixes may be left over: they belong to heads that are not used.
_MAY_BE_UNUSED = ("cls.", "lm_head.", "pooler.", "classifier.", "embeddings.position_ids")
_MOST_NAMES = 4  # in a message


def filling(module: nn.Module, weights: Mapping[str, mx.array], source: Path) -> Work[None]:
    """Put `weights` into the module, in slices. Raises ModelUnavailable if they don't fit."""
    parameters: Any = tree_flatten(module.parameters())
    shapes = {name: array.shape for name, array in parameters}
    missing = [name for name in shapes if name not in weights]
    used = {name: weights[name] for name in shapes if name in weights}
    misshaped = [
        f"{name} {array.shape} instead of {shapes[name]}"
        for name, array in used.items()
        if array.shape != shapes[name]
    ]
    unknown = [n for n in weights if n not in shapes and not n.startswith(_MAY_BE_UNUSED)]
    _refuse_if_any("has no weights called", missing, source)
    _refuse_if_any("has weights of another shape:", misshaped, source)
    _refuse_if_any("has weights that this architecture does not know:", unknown, source)
    module.load_weights(list(used.items()))
    module.eval()
    yield
    yield from reading(module, source)


def quantise_like(module: nn.Module, weights: Mapping[str, mx.array]) -> None:
    """Quantise the layers that have scales in `weights`, in the format of these. Scales that don't
    fit their layer are left for `filling` to refuse."""
    arrays = dict(weights)

    def quant_config(path: str, layer: Any) -> bool | dict[str, Any]:
        weight, scales = arrays.get(f"{path}.weight"), arrays.get(f"{path}.scales")
        if weight is None or scales is None or not hasattr(layer, "to_quantized"):
            return False
        if scales.ndim != layer.weight.ndim:
            return False
        groups, width = int(scales.shape[-1]), int(layer.weight.shape[-1])
        if not 0 < groups <= width or width % groups:
            return False
        config: dict[str, Any] = infer_quant_config(path, layer, arrays)
        return config

    nn.quantize(module, class_predicate=quant_config)


def _refuse_if_any(problem: str, names: list[str], source: Path) -> None:
    if names:
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        raise ModelUnavailable(f"{source} {problem} {', '.join(sorted(names)[:_MOST_NAMES])}{more}")
