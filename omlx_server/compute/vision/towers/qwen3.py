"""The vision tower of Qwen3-VL and Qwen3.5, and of their mixtures of experts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.vision.towers.blocks import (
    EPS,
    Parts,
    PatchEmbed,
    PatchRotation,
    QwenTower,
    QwenVisionConfig,
    TowerBlock,
    common_sizes,
)
from omlx_server.compute.vision.towers.config import ACTIVATIONS, VisionFields, check
from omlx_server.compute.vision.towers.features import Features
from omlx_server.compute.vision.towers.grids import (
    Floats,
    Grid,
    Ints,
    check_grid,
    interpolation,
    patch_places,
    rotary_angles,
)
from omlx_server.compute.vision.towers.slices import Slices
from omlx_server.core.work import Work


@dataclass(frozen=True, slots=True)
class Qwen3VisionConfig(QwenVisionConfig):
    """`side` x `side` positions are learned. Features behind the blocks in `deepstack` go to the
    language model's first layers."""

    side: int
    deepstack: tuple[int, ...]

    @classmethod
    def read(cls, config: Mapping[str, Any], *, deepstack: bool) -> "Qwen3VisionConfig":
        """Raises ModelUnavailable."""
        fields = VisionFields(config)
        positions = fields.size("num_position_embeddings")
        read = cls(
            **common_sizes(fields),
            hidden=fields.size("hidden_size"),
            intermediate=fields.size("intermediate_size"),
            out=fields.size("out_hidden_size"),
            activation=fields.activation("gelu_pytorch_tanh"),
            side=int(positions**0.5),
            deepstack=fields.sizes("deepstack_visual_indexes") if deepstack else (),
        )
        check(read.hidden % (4 * read.heads) == 0, "hidden_size does not fit num_heads")
        check(read.side**2 == positions, "num_position_embeddings is no square")
        behind = all(number < read.depth for number in read.deepstack)
        check(behind, "deepstack_visual_indexes names blocks that are not there")
        return read


class Qwen3Mlp(nn.Module):
    def __init__(self, config: Qwen3VisionConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.linear_fc1 = nn.Linear(config.hidden, config.intermediate)
        self.linear_fc2 = nn.Linear(config.intermediate, config.hidden)
        self._activation = ACTIVATIONS[config.activation]

    def __call__(self, x: mx.array) -> mx.array:
        output: mx.array = self.linear_fc2(self._activation(self.linear_fc1(x)))
        return output


class Qwen3Merger(nn.Module):
    """Makes a token's embedding from its patches. A `deep` one norms them joined."""

    def __init__(self, config: Qwen3VisionConfig, *, deep: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._width = config.hidden * config.merge**2
        self._deep = deep
        self.norm = nn.LayerNorm(self._width if deep else config.hidden, eps=EPS)
        self.linear_fc1 = nn.Linear(self._width, self._width)
        self.linear_fc2 = nn.Linear(self._width, config.out)

    def __call__(self, x: mx.array) -> mx.array:
        """Return embeddings [N / merge^2, out] of tokens for patches [N, hidden]."""
        shape = -1, self._width
        merged = self.norm(x.reshape(shape)) if self._deep else self.norm(x).reshape(shape)
        output: mx.array = self.linear_fc2(nn.gelu(self.linear_fc1(merged)))
        return output


class Qwen3Tower(QwenTower):
    """patch_embed.proj is linear here."""

    config: Qwen3VisionConfig

    def __init__(self, config: Qwen3VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(config.kernel, config.hidden, bias=True)
        self.pos_embed = nn.Embedding(config.side**2, config.hidden)
        self.blocks = [
            TowerBlock(config.hidden, config.heads, nn.LayerNorm, Qwen3Mlp(config))
            for _ in range(config.depth)
        ]
        self.merger = Qwen3Merger(config, deep=False)
        self.deepstack_merger_list = [Qwen3Merger(config, deep=True) for _ in config.deepstack]

    def computing(self, pixels: mx.array, grid: Grid) -> Work[Features]:
        """Compute patches [N, values] in merge order. Raises ValueError."""
        config = self.config
        check_grid(grid, config.merge, pixels.shape[0])
        places = patch_places(grid, config.merge)
        rotate = PatchRotation.of(rotary_angles(places, config.hidden // config.heads))
        parts, deep = Parts(grid[0]), list[mx.array]()
        slices = Slices(grid[0], grid[1] * grid[2], config.hidden)
        embedded = self.patch_embed(pixels)
        x = embedded + self._learned(*interpolation(places, grid, config.side), embedded.dtype)
        for number, block in enumerate(self.blocks):
            x = block(x, rotate, parts)
            if number in config.deepstack:
                deep.append(self.deepstack_merger_list[config.deepstack.index(number)](x))
            if slices.over([x, *deep]):
                yield
        return Features(self.merger(x), mx.stack(deep) if deep else None).computed()

    def _learned(self, indices: Ints, shares: Floats, dtype: mx.Dtype) -> mx.array:
        parts = [
            self.pos_embed(mx.array(index)).astype(mx.float32) * mx.array(share)[:, None]
            for index, share in zip(indices, shares, strict=True)
        ]
        output: mx.array = sum(parts[1:], parts[0]).astype(dtype)
        return output
