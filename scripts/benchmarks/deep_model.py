"""Models for `scripts/bench speculation` with a draft model: no two of one vocabulary, of which one
is small and both are trained, come with a package.

A model is made deeper by layers that add nothing, so that it answers as before and takes as much
longer: it drafts for that, always rightly. A small random one drafts always wrongly.
"""

import copy
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import orjson
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import _get_classes

from omlx_server.compute.model.loader import LoadedModel, read_dims, weight_bytes
from omlx_server.compute.quantise import use_rows_of_own_length
from omlx_server.compute.row_ends import verifies_drafts

# A layer adds what these give.
_ADDING = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
_SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def deepened(loaded: LoadedModel, path: Path, times: int) -> LoadedModel:
    """A model with `times` the layers of a loaded llama in float32, of which `path` is the
    directory. The others add nothing."""
    config = _config(path)
    count = config["num_hidden_layers"]
    weights = dict(tree_flatten(loaded.model.parameters()))
    for name, array in list(weights.items()):
        start, _, rest = name.partition("layers.")
        number, _, part = rest.partition(".")
        for more in range(1, times) if rest else ():
            added = mx.zeros_like(array) if part in _ADDING else mx.array(array) + 0
            weights[f"{start}layers.{int(number) + more * count}.{part}"] = added
    model = _model({**config, "num_hidden_layers": count * times})
    model.update(tree_unflatten(list(weights.items())))
    return _loaded(model, config, "deepened")


def save(deep: LoadedModel, path: Path, into: Path) -> Path:
    """Write what `deepened` made of the model in `path` as a directory, and return that."""
    into.mkdir(parents=True)
    for file in path.iterdir():
        if not file.name.startswith("model"):
            shutil.copy(file, into)
    config = {**_config(path), "num_hidden_layers": len(deep.model.layers)}
    (into / "config.json").write_bytes(orjson.dumps(config))
    weights = dict(tree_flatten(deep.model.parameters()))
    mx.save_safetensors(str(into / "model.safetensors"), weights, metadata={"format": "mlx"})
    return into


def small(path: Path) -> LoadedModel:
    """A small model with random weights and the vocabulary of the one in `path`."""
    config = {**_config(path), **_SMALL}
    mx.random.seed(0)
    return _loaded(_model(config), config, "small")


def _config(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = orjson.loads((path / "config.json").read_bytes())
    return config


def _model(config: dict[str, Any]) -> nn.Module:
    kind, arguments = _get_classes(config)
    model: nn.Module = kind(arguments.from_dict(copy.deepcopy(config)))
    return model


def _loaded(model: nn.Module, config: dict[str, Any], name: str) -> LoadedModel:
    model.eval()
    mx.eval(model.parameters())
    use_rows_of_own_length(model)
    dims, verifies = read_dims(model, config), verifies_drafts(model)
    return LoadedModel(model, dims, name, weight_bytes(model), verifies)
