"""The vision towers of Qwen2-VL, Qwen2.5-VL (most of its blocks attend within windows), Qwen3-VL
and Qwen3.5."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from omlx_server.compute.attention.all_to_all import encoder_shape
from omlx_server.compute.vision.towers import blocks, grids
from omlx_server.compute.vision.towers.blocks import EPS, Parts
from omlx_server.compute.vision.towers.config import ACTIVATIONS, VisionFields, check
from omlx_server.compute.vision.towers.features import Features
from omlx_server.compute.vision.towers.grids import Grid, Ints
from omlx_server.compute.vision.towers.slices import Slices
from omlx_server.core.memory.encoder import EncoderShape
from omlx_server.core.work import Work


@dataclass(frozen=True, slots=True)
class QwenVisionConfig:
    """Sizes of a tower. `merge` x `merge` patches are a token, `out` wide. Windows have at most
    `window` x `window` tokens, 0 for none; blocks in `attend_to_all` have none. `side` x `side`
    positions are learned, 0 for none. Features behind the blocks in `deepstack` go to the language
    model's first layers."""

    depth: int
    hidden: int
    intermediate: int
    heads: int
    channels: int
    patch: int
    frames: int
    merge: int
    out: int
    activation: str
    window: int = 0
    attend_to_all: tuple[int, ...] = ()
    side: int = 0
    deepstack: tuple[int, ...] = ()

    @property
    def kernel(self) -> tuple[int, ...]:
        return self.channels, self.frames, self.patch, self.patch


def _common_sizes(fields: VisionFields) -> dict[str, Any]:
    return {
        "depth": fields.size("depth"),
        "heads": fields.size("num_heads"),
        "channels": fields.size("in_channels", "in_chans", default=3),
        "patch": fields.size("patch_size"),
        "frames": fields.size("temporal_patch_size", default=2),
        "merge": fields.size("spatial_merge_size", default=2),
    }


def qwen2(config: Mapping[str, Any]) -> "QwenTower":
    """Make Qwen2-VL's tower. Raises ModelUnavailable."""
    fields = VisionFields(config)
    hidden = fields.size("embed_dim")
    read = QwenVisionConfig(
        **_common_sizes(fields),
        hidden=hidden,
        intermediate=int(hidden * fields.number("mlp_ratio", 4)),
        out=fields.size("hidden_size"),
        activation=fields.activation("quick_gelu"),
    )
    check(hidden % (4 * read.heads) == 0, "the width does not fit num_heads")
    return QwenTower(read, blocks.TowerMlp, Qwen2Merger(read, nn.LayerNorm))


def qwen2_5(config: Mapping[str, Any]) -> "QwenTower":
    """Make Qwen2.5-VL's tower. Raises ModelUnavailable."""
    fields = VisionFields(config)
    common = _common_sizes(fields)
    read = QwenVisionConfig(
        **common,
        hidden=fields.size("hidden_size"),
        intermediate=fields.size("intermediate_size"),
        out=fields.size("out_hidden_size"),
        activation=fields.activation("silu"),
        window=fields.size("window_size") // (common["merge"] * common["patch"]),
        attend_to_all=fields.blocks("fullatt_block_indexes", common["depth"]),
    )
    check(read.hidden % (4 * read.heads) == 0, "the width does not fit num_heads")
    check(read.window > 0, "window_size is smaller than a token")
    return QwenTower(read, GatedMlp, Qwen2Merger(read, nn.RMSNorm))


def qwen3(config: Mapping[str, Any], *, deepstack: bool = True) -> "QwenTower":
    """Make Qwen3-VL's tower, or Qwen3.5's without `deepstack`. Raises ModelUnavailable."""
    fields = VisionFields(config)
    common, positions = _common_sizes(fields), fields.size("num_position_embeddings")
    read = QwenVisionConfig(
        **common,
        hidden=fields.size("hidden_size"),
        intermediate=fields.size("intermediate_size"),
        out=fields.size("out_hidden_size"),
        activation=fields.activation("gelu_pytorch_tanh"),
        side=int(positions**0.5),
        deepstack=fields.blocks("deepstack_visual_indexes", common["depth"]) if deepstack else (),
    )
    check(read.hidden % (4 * read.heads) == 0, "hidden_size does not fit num_heads")
    check(read.side**2 == positions, "num_position_embeddings is no square")
    return QwenTower(read, LinearMlp, Qwen3Merger(read, deep=False))


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


class LinearMlp(blocks.TowerMlp):
    names = "linear_fc1", "linear_fc2"


class Qwen2Merger(nn.Module):
    """Makes a token's embedding from its patches."""

    def __init__(self, config: QwenVisionConfig, norm: Callable[..., Any]) -> None:
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


class Qwen3Merger(nn.Module):
    """Makes a token's embedding from its patches, which a `deep` one norms as one vector."""

    def __init__(self, config: QwenVisionConfig, *, deep: bool) -> None:
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


class QwenTower(nn.Module):
    """A tower whose weights have the names of checkpoints; patch_embed.proj is linear here."""

    def __init__(
        self, config: QwenVisionConfig, mlp: Callable[..., nn.Module], merger: nn.Module
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.config = config
        norm = nn.RMSNorm if config.window else nn.LayerNorm
        sizes = config.hidden, config.intermediate, config.activation
        self.patch_embed = blocks.PatchEmbed(config.kernel, config.hidden, bias=config.side > 0)
        self.blocks = [
            blocks.TowerBlock(config.hidden, config.heads, norm, mlp(*sizes))
            for _ in range(config.depth)
        ]
        self.merger = merger
        if config.side:
            self.pos_embed = nn.Embedding(config.side**2, config.hidden)
        self.deepstack_merger_list = [Qwen3Merger(config, deep=True) for _ in config.deepstack]

    @property
    def kernel(self) -> tuple[str, tuple[int, ...]]:
        return "patch_embed.proj.weight", self.config.kernel

    @property
    def shape(self) -> EncoderShape:
        config, width = self.config, self.blocks[0].norm1.weight.dtype.size
        return encoder_shape(config.depth, config.hidden, config.intermediate, config.heads, width)

    def grid_of(self, patches: int) -> Grid:
        merge = self.config.merge
        side = max(1, round(patches**0.5 / merge)) * merge
        return 1, side, side

    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        return prod(grid), prod(self.config.kernel)

    def tokens(self, grid: Grid) -> int:
        return prod(grid) // self.config.merge**2

    def computing(self, pixels: mx.array, grid: Grid) -> Work[Features]:
        """Compute patches [N, values] in merge order. Raises ValueError."""
        config = self.config
        grids.check_grid(grid, config.merge, pixels.shape[0])
        places = grids.patch_places(grid, config.merge)
        frames = windows = Parts(grid[0])
        original_order = None
        if config.window:
            # Patches are computed window by window; the tokens are put back at the end.
            tokens, sizes = grids.window_order(grid, config.merge, config.window)
            token_patches = config.merge**2
            patches = (tokens[:, None] * token_patches + np.arange(token_patches)).reshape(-1)
            windows = Parts.of((sizes * token_patches).tolist())
            places, pixels = places[patches], pixels[mx.array(patches.astype(np.int32))]
            original_order = mx.array(np.argsort(tokens).astype(np.int32))
        rotate = blocks.PatchRotation.of(grids.rotary_angles(places, config.hidden // config.heads))
        slices = Slices(grid[0], grid[1] * grid[2], config.hidden)
        x, deep = self._embed(pixels, places, grid), list[mx.array]()
        for number, block in enumerate(self.blocks):
            x = block(x, rotate, frames if number in config.attend_to_all else windows)
            if number in config.deepstack:
                deep.append(self.deepstack_merger_list[config.deepstack.index(number)](x))
            if slices.end_after_block([x, *deep]):
                yield
        merged = self.merger(x)
        ordered = merged if original_order is None else merged[original_order]
        return Features(ordered, mx.stack(deep) if deep else None).computed()

    def _embed(self, pixels: mx.array, places: Ints, grid: Grid) -> mx.array:
        """Embed patches and add their learned positions, if there are any."""
        embedded = self.patch_embed(pixels)
        if not self.config.side:
            return embedded
        indices, shares = grids.interpolation(places, grid, self.config.side)
        neighbours = [
            self.pos_embed(mx.array(index)).astype(mx.float32) * mx.array(share)[:, None]
            for index, share in zip(indices, shares, strict=True)
        ]
        learned: mx.array = sum(neighbours[1:], neighbours[0]).astype(embedded.dtype)
        return embedded + learned
