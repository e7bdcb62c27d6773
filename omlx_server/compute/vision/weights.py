"""Loads a model's vision tower. Mlx thread."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx_server.compute.vision.families import Tower, TowerFamily
from omlx_server.compute.weights.weights import filling, lazy_weights, quantise_like
from omlx_server.core.work import Work

Weights = dict[str, mx.array]

# Buffers of old checkpoints, which the towers compute themselves.
_IGNORED = (".position_ids", ".inv_freq")


def loading_tower(family: TowerFamily, config: Mapping[str, Any], directory: Path) -> Work[Tower]:
    """Load a tower, in slices. Raises ModelUnavailable."""
    tower = family.make(config)
    yield from filling_tower(tower, renamed(lazy_weights(directory), family), directory)
    return tower  # type: ignore[no-any-return]


def renamed(stored: Mapping[str, mx.array], family: TowerFamily) -> Weights:
    """Return the tower's weights under the names of our modules."""
    weights: Weights = {}
    for name, array in stored.items():
        for theirs, ours in family.prefixes:
            if name.startswith(theirs):
                if not name.endswith(_IGNORED):
                    weights[ours + name.removeprefix(theirs)] = array
                break
    return weights


def filling_tower(tower: Any, weights: Weights, source: Path) -> Work[None]:
    """Put renamed `weights` into a tower. `source` is named in errors. Raises ModelUnavailable."""
    name, kernel = tower.kernel
    if name in weights:
        weights = {**weights, name: _linear_weight(weights[name], kernel)}
    quantise_like(tower, weights)
    yield from filling(tower, weights, source)


def _linear_weight(weight: mx.array, kernel: tuple[int, ...]) -> mx.array:
    """Reshape a convolution's weight [out, *kernel], or MLX's with the channels last, to [out,
    values]."""
    if weight.shape[1:] == kernel:
        return weight.reshape(weight.shape[0], -1)
    if weight.shape[1:] == (*kernel[1:], kernel[0]):
        return mx.moveaxis(weight, -1, 1).reshape(weight.shape[0], -1)
    return weight
