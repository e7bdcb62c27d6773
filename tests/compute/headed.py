"""Models with heads of random weights, and such weights under the names of trained checkpoints."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from omlx_server.compute.architectures.pair import Headed, language_model
from omlx_server.compute.model.heads import with_heads
from omlx_server.compute.model.loader import LoadedModel, weight_bytes
from omlx_server.compute.weights.weights import reading
from omlx_server.core.work import finish
from tests.tiny_models import load_tiny, make_model, save_tiny

HEADED = ("qwen3_5", "qwen3_5_moe", "glm4_moe", "deepseek_v3")

Weights = Mapping[str, mx.array]

_STACKED = "mlp.switch_mlp."
_DEEPSEEK = {
    "project": "eh_proj",
    "embed_norm": "enorm",
    "hidden_norm": "hnorm",
    "norm": "shared_head.norm",
}
_QWEN = {
    "project": "fc",
    "embed_norm": "pre_fc_norm_embedding",
    "hidden_norm": "pre_fc_norm_hidden",
    "norm": "norm",
}


@cache
def headed(architecture: str) -> LoadedModel:
    """A tiny model with heads."""
    loaded = load_tiny(architecture)
    with TemporaryDirectory() as directory:
        weights = as_trained(architecture, loaded.model, random_heads(loaded.model))
        write(Path(directory), weights)
        model = with_heads(loaded.model, {}, Path(directory))
        assert isinstance(model, Headed)
        finish(reading(model, Path(directory)))
    known_as = f"{loaded.fingerprint}-headed"
    return replace(loaded, model=model, fingerprint=known_as, weight_bytes=weight_bytes(model))


def save_headed(
    path: Path, architecture: str, heads: Weights | None = None, **changes: Any
) -> Weights:
    """A tiny model with heads as an MLX-layout directory. They are random unless given, and are
    returned."""
    save_tiny(path, architecture, **changes)
    model, _ = make_model(architecture)
    heads = random_heads(model) if heads is None else heads
    add(path, as_trained(architecture, model, heads))
    return heads


def stored(path: Path) -> dict[str, mx.array]:
    """The weights of a directory."""
    weights = mx.load(str(path / "model.safetensors"))
    assert isinstance(weights, dict)
    return weights


def add(path: Path, more: Weights) -> None:
    """Put more weights into a directory."""
    write(path, {**stored(path), **more})


def write(path: Path, weights: Weights) -> None:
    mx.eval(list(weights.values()))  # before the file that they are in is written
    file = str(path / "model.safetensors")
    mx.save_safetensors(file, dict(weights), metadata={"format": "mlx"})


def random_heads(model: nn.Module) -> Weights:
    """Weights under our names. The layer has those of the model's last one."""
    last = language_model(model).model.layers[-1]
    layer: dict[str, mx.array] = dict(tree_flatten(last.parameters()))
    shapes = {f"layer.{name}": array.shape for name, array in layer.items()}
    width = layer["input_layernorm.weight"].size
    shapes["project.weight"] = (width, 2 * width)
    shapes |= {f"{name}.weight": (width,) for name in ("embed_norm", "hidden_norm", "norm")}
    return {name: _drawn(number, shapes[name]) for number, name in enumerate(sorted(shapes))}


def as_trained(architecture: str, model: nn.Module, heads: Weights) -> Weights:
    """The same as a trained checkpoint has them: named `mtp`, or as a layer behind the last, which
    comes with an embedding and a head. These are the model's own there, and zeros here."""
    is_qwen = architecture.startswith("qwen")
    names = _QWEN if is_qwen else _DEEPSEEK
    body = language_model(model).model
    start = "mtp." if is_qwen else f"model.layers.{len(body.layers)}."
    layer, found = dict[str, mx.array](), dict[str, mx.array]()
    for name, array in heads.items():
        part, _, rest = name.partition(".")
        if part == "layer":
            layer[rest] = array
        else:
            found[f"{start}{names[part]}.{rest}"] = array
    inside = f"{start}layers.0." if is_qwen else start
    found |= {inside + name: array for name, array in _apart(architecture, layer).items()}
    if not is_qwen:
        table = mx.zeros_like(body.embed_tokens.weight)
        found |= {f"{start}embed_tokens.weight": table, f"{start}shared_head.head.weight": table}
    return found


def _apart(architecture: str, layer: dict[str, mx.array]) -> dict[str, mx.array]:
    """The weights of a layer, cut as trained checkpoints have them."""
    match architecture:
        case "qwen3_5":
            return layer
        case "qwen3_5_moe":
            return _two_in_one(layer)
    if architecture == "deepseek_v3":
        layer = _keys_beside_values(layer)
    return experts_apart(layer)


def experts_apart(weights: Weights) -> dict[str, mx.array]:
    """With each expert's weights under a name of its own."""
    found = dict[str, mx.array]()
    for name, array in weights.items():
        start, stacked, own = name.partition(_STACKED)
        if stacked:
            found |= {f"{start}mlp.experts.{number}.{own}": one for number, one in enumerate(array)}
        else:
            found[name] = array
    return found


def _two_in_one(layer: dict[str, mx.array]) -> dict[str, mx.array]:
    """With the gates of all experts beside what they let through."""
    found = {name: array for name, array in layer.items() if not name.startswith(_STACKED)}
    gate, up, down = (layer[f"{_STACKED}{name}_proj.weight"] for name in ("gate", "up", "down"))
    found["mlp.experts.gate_up_proj"] = mx.concatenate([gate, up], axis=-2)
    found["mlp.experts.down_proj"] = down
    return found


def _keys_beside_values(layer: dict[str, mx.array]) -> dict[str, mx.array]:
    """With one projection of the latents to the keys and the values of all heads."""
    found = dict(layer)
    keys = found.pop("self_attn.embed_q.weight").swapaxes(-1, -2)
    both = mx.concatenate([keys, found.pop("self_attn.unembed_out.weight")], axis=1)
    found["self_attn.kv_b_proj.weight"] = both.reshape(-1, both.shape[-1])
    return found


def _drawn(number: int, shape: tuple[int, ...]) -> mx.array:
    """Norms around one, all else as in tests/tiny_models.py."""
    noise = mx.random.normal(shape, key=mx.random.key(1000 + number))
    return 1 + 0.1 * noise if len(shape) == 1 else noise * (1.5 / shape[-1] ** 0.5)
