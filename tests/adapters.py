"""Makes adapters as mlx-lm saves them, and models that wear one as mlx-lm does it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters

from omlx_server.core.adapters import CONFIG, WEIGHTS, Adapter
from omlx_server.models.adapters.files import read_adapter

ATTENTION = ("self_attn.q_proj", "self_attn.v_proj")
DENSE = (*ATTENTION, "self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")


def save_adapter(
    directory: Path,
    model: nn.Module,
    *,
    seed: int = 1,
    rank: int = 4,
    scale: float = 20.0,
    keys: Sequence[str] = ATTENTION,
    layers: int = 2,
    **changes: Any,
) -> Adapter:
    """Save random matrices for layers of a model, which mlx-lm's own code names, and which stays as
    it is; `changes` are of the config. Returns the adapter."""
    parameters = {"rank": rank, "scale": scale, "dropout": 0.0, "keys": list(keys)}
    config = {"fine_tune_type": "lora", "num_layers": layers, "lora_parameters": parameters}
    bare = dict(model.named_modules())
    linear_to_lora_layers(model, layers, {**parameters, "keys": set(keys)})
    shapes = {
        name: array.shape
        for name, array in dict(tree_flatten(model.parameters())).items()
        if name.endswith((".lora_a", ".lora_b"))
    }
    take_off(model, bare)
    write(directory, {**config, **changes}, matrices(shapes, seed))
    return read_adapter(directory, directory.name)


def matrices(shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, mx.array]:
    """Random matrices that change what a tiny model says."""
    random = mx.random.split(mx.random.key(seed), len(shapes))
    return {
        name: mx.random.normal(shape, key=key) * (0.3 / shape[0] ** 0.5)
        for key, (name, shape) in zip(random, sorted(shapes.items()), strict=True)
    }


def write(directory: Path, config: Mapping[str, Any], arrays: Mapping[str, mx.array]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG).write_text(json.dumps(config))
    mx.save_safetensors(str(directory / WEIGHTS), dict(arrays))


def wear(model: nn.Module, directory: Path) -> nn.Module:
    """Have a model wear an adapter by mlx-lm's own layers."""
    load_adapters(model, str(directory))
    return model.eval()


def fuse(model: nn.Module) -> nn.Module:
    """Fuse the adapter that a model wears into its weights, as `mlx_lm.fuse` does."""
    fused = [(name, layer.fuse()) for name, layer in model.named_modules() if "lora_a" in layer]
    model.update_modules(tree_unflatten(fused))
    return model


def take_off(model: nn.Module, bare: Mapping[str, nn.Module]) -> None:
    """Put the layers back that a model had before it wore an adapter."""
    worn = [name for name, layer in model.named_modules() if "lora_a" in layer]
    model.update_modules(tree_unflatten([(name, bare[name]) for name in worn]))
