"""The vision towers of Qwen2.5-VL, most of whose blocks attend within windows, and of Qwen2-VL."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from omlx_server.compute.vision.towers.blocks import (
    EPS,
    Parts,
    PatchEmbed,
    PatchRotation,
    QwenTower,
    QwenVisionConfig,
    TowerBlock,
    TowerMlp,
    common_sizes,
)
from omlx_server.compute.vision.towers.config import ACTIVATIONS, VisionFields, check
from omlx_server.compute.vision.towers.features import Features
from omlx_server.compute.vision.towers.grids import (
    Grid,
    check_grid,
    patch_places,
    rotary_angles,
    window_order,
)
from omlx_server.compute.vision.towers.slices import Slices
from omlx_server.core.work import Work


@dataclass(frozen=True, slots=True)
class Qwen2VisionConfig(QwenVisionConfig):
    """Windows have at most `window` x `window` tokens, 0 for none; blocks in `attend_to_all` have
    none."""

    window: int
    attend_to_all: tuple[int, ...]

    @classmethod
    def read_windowed(cls, config: Mapping[str, Any]) -> "Qwen2VisionConfig":
        """Read Qwen2.5-VL's config. Raises ModelUnavailable."""
        fields = VisionFields(config)
        common = common_sizes(fields)
        return cls(
            **common,
            hidden=fields.size("hidden_size"),
            intermediate=fields.size("intermediate_size"),
            out=fields.size("out_hidden_size"),
            activation=fields.activation("silu"),
            window=fields.size("window_size") // common["merge"] // common["patch"],
            attend_to_all=fields.sizes("fullatt_block_indexes"),
        )._checked(windowed=True)

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Qwen2VisionConfig":
        """Read Qwen2-VL's config. Raises ModelUnavailable."""
        fields = VisionFields(config)
        hidden = fields.size("embed_dim")
        return cls(
            **common_sizes(fields),
            hidden=hidden,
            intermediate=int(hidden * fields.number("mlp_ratio", 4)),
            out=fields.size("hidden_size"),
            activation=fields.activation("quick_gelu"),
            window=0,
            attend_to_all=(),
        )._checked(windowed=False)

    def _checked(self, *, windowed: bool) -> "Qwen2VisionConfig":
        check(self.hidden % (4 * self.heads) == 0, "the width does not fit num_heads")
        check(self.window > 0 or not windowed, "window_size is smaller than a token")
        behind = all(number < self.depth for number in self.attend_to_all)
        check(behind, "fullatt_block_indexes names blocks that are not there")
        return self


class GatedMlp(nn.Module):
    def __init__(self, hidden: int, intermediate: int, activation: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gate_proj = nn.Linear(hidden, intermediate)
        self.up_proj = nn.Linear(hidden, intermediate)
        self.down_proj = nn.Linear(intermediate, hidden)
        self._activation = ACTIVATIONS[activation]

    def __call__(self, x: mx.array) -> mx.array:
        gated = self._activation(self.gate_proj(x)) * self.up_proj(x)
        output: mx.array = self.down_proj(gated)
        return output


class Qwen2Merger(nn.Module):
    def __init__(self, config: Qwen2VisionConfig, norm: Callable[..., Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._width = config.hidden * config.merge**2
        self.ln_q = norm(config.hidden, eps=EPS)
        self.mlp = [
            nn.Linear(self._width, self._width),
            nn.GELU(),
            nn.Linear(self._width, config.out),
        ]

    def __call__(self, x: mx.array) -> mx.array:
        """Return embeddings [N / merge^2, out] of tokens for patches [N, hidden]."""
        output: mx.array = self.ln_q(x).reshape(-1, self._width)
        for layer in self.mlp:
            output = layer(output)
        return output


class Qwen2Tower(QwenTower):
    """The tower of Qwen2-VL, or with windows of Qwen2.5-VL. patch_embed.proj is linear here."""

    config: Qwen2VisionConfig

    def __init__(self, config: Qwen2VisionConfig) -> None:
        super().__init__()
        self.config = config
        norm, mlp = (nn.RMSNorm, GatedMlp) if config.window else (nn.LayerNorm, TowerMlp)
        self.patch_embed = PatchEmbed(config.kernel, config.hidden, bias=False)
        sizes = config.hidden, config.intermediate, config.activation
        self.blocks = [
            TowerBlock(config.hidden, config.heads, norm, mlp(*sizes)) for _ in range(config.depth)
        ]
        self.merger = Qwen2Merger(config, norm)

    def computing(self, pixels: mx.array, grid: Grid) -> Work[Features]:
        """Compute patches [N, values] in merge order. Raises ValueError."""
        config = self.config
        check_grid(grid, config.merge, pixels.shape[0])
        angles = rotary_angles(patch_places(grid, config.merge), config.hidden // config.heads)
        whole = Parts(grid[0])
        slices = Slices(grid[0], grid[1] * grid[2], config.hidden)
        if not config.window:
            parts = [whole] * config.depth
            merged = yield from self._merged(pixels, PatchRotation.of(angles), parts, slices)
            return Features(merged).computed()
        tokens, sizes = window_order(grid, config.merge, config.window)
        unit = config.merge**2
        patches = (tokens[:, None] * unit + np.arange(unit)).reshape(-1)
        windows = Parts.of((sizes * unit).tolist())
        parts = [whole if n in config.attend_to_all else windows for n in range(config.depth)]
        by_windows = pixels[mx.array(patches.astype(np.int32))]
        rotate = PatchRotation.of(angles[patches])
        merged = yield from self._merged(by_windows, rotate, parts, slices)
        back = mx.array(np.argsort(tokens).astype(np.int32))
        return Features(merged[back]).computed()

    def _merged(
        self, pixels: mx.array, rotate: PatchRotation, parts: list[Parts], slices: Slices
    ) -> Work[mx.array]:
        x = self.patch_embed(pixels)
        for block, visible in zip(self.blocks, parts, strict=True):
            x = block(x, rotate, visible)
            if slices.over([x]):
                yield
        output: mx.array = self.merger(x)
        return output
