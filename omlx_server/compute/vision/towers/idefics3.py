"""The vision tower of Idefics3 and SmolVLM: SigLIP, and a projector that concatenates patches."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from omlx_server.compute.vision.towers.config import check, outer_size, text_width
from omlx_server.compute.vision.towers.features import Features
from omlx_server.compute.vision.towers.grids import Grid, Ints
from omlx_server.compute.vision.towers.siglip import DEFAULT_SIZES, SiglipConfig, SiglipTower
from omlx_server.core.work import Work

# From transformers' Idefics3VisionConfig and SmolVLMVisionConfig.
_OWN_SIZES = {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}


@dataclass(frozen=True, slots=True)
class Idefics3VisionConfig:
    """`merge` x `merge` patches become a token, `out` wide."""

    siglip: SiglipConfig
    merge: int
    out: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Idefics3VisionConfig":
        """Raises ModelUnavailable for sizes that do not fit."""
        siglip = SiglipConfig.read(config, {**DEFAULT_SIZES, **_OWN_SIZES})
        merge = outer_size(config, "scale_factor", 2)
        check(siglip.side % merge == 0, "its patches do not fit scale_factor")
        return cls(siglip, merge, text_width(config, 4096))


class Connector(nn.Module):
    def __init__(self, config: Idefics3VisionConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._merge = config.merge
        values = config.siglip.hidden * config.merge**2
        self.modality_projection = nn.Module()
        self.modality_projection.proj = nn.Linear(values, config.out, bias=False)

    def __call__(self, x: mx.array, grid: Grid) -> mx.array:
        """Return embeddings [B * N / merge^2, out] of tokens for patches [B, N, hidden]."""
        count, rows, columns = grid
        merge = self._merge
        blocks = x.reshape(count, rows // merge, merge, columns // merge, merge, -1)
        merged = blocks.transpose(0, 1, 3, 2, 4, 5).reshape(-1, x.shape[-1] * merge**2)
        output: mx.array = self.modality_projection.proj(merged)
        return output


class Idefics3Tower(SiglipTower):
    def __init__(self, config: Idefics3VisionConfig) -> None:
        super().__init__(config.siglip)
        self.config = config
        self.connector = Connector(config)

    def tokens(self, grid: Grid) -> int:
        return prod(grid) // self.config.merge**2

    def computing(
        self, pixels: mx.array, grid: Grid, seen: NDArray[np.bool_] | None = None
    ) -> Work[Features]:
        """Compute the features of an image's tiles. `pixels` are [tiles, H, W, channels]; `seen`
        [tiles, rows, columns] is False for padding. Raises ValueError."""
        siglip, merge = self.config.siglip, self.config.merge
        self.check_pixels(pixels, grid)
        if min(grid) < 1 or grid[1] % merge or grid[2] % merge:
            raise ValueError(f"a grid of {grid} can't be merged {merge} by {merge}")
        if seen is None:
            seen = np.ones(grid, dtype=np.bool_)
        positions = mx.array(np.stack([_learned_positions(tile, siglip.side) for tile in seen]))
        mask = None if seen.all() else mx.array(seen.reshape(grid[0], 1, 1, -1))
        hidden = yield from self.vision_model.computing(pixels, positions, mask)
        return Features(self.connector(hidden, grid)).computed()


def _learned_positions(seen: NDArray[np.bool_], side: int) -> Ints:
    """Return for each patch of a tile the number of its learned position, int32 [N], 0 for padding.
    Computed in float32, whose rounding decides between neighbours."""
    rows = _nearest_places(seen.shape[0], int(seen[:, 0].sum()), side)
    columns = _nearest_places(seen.shape[1], int(seen[0].sum()), side)
    return np.where(seen, rows[:, None] * side + columns, 0).reshape(-1).astype(np.int32)


def _nearest_places(size: int, count: int, side: int) -> Ints:
    """Spread the first `count` of `size` rows or columns over `side` learned ones."""
    step = 1 / side
    bounds = (step + step * np.arange(side - 1)).astype(np.float32)
    shares = np.arange(size, dtype=np.float32) * np.float32(1 / count)
    places: Ints = np.searchsorted(bounds, np.minimum(shares, np.float32(1 - 1e-6)), side="right")
    return places
