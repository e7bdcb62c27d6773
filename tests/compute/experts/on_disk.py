"""Tiny mixtures whose experts stay on the disk."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from omlx_server.compute.experts.install import DiskExperts, leave_on_disk
from omlx_server.compute.model.loader import LoadedModel, loading, open_lazily
from omlx_server.core.work import finish
from omlx_server.models.layout import expert_files
from tests import tiny_models

# Experts that forwards need at once, and one at a time.
LENGTHS = (37, 1, 1, 5, 1, 1, 1)


def opened(directory: Path, slots: int) -> tuple[nn.Module, DiskExperts]:
    files = expert_files(directory)
    assert files is not None
    model = open_lazily(directory)
    return model, leave_on_disk(model, files, slots)


def loaded_on_disk(directory: Path, slots: int) -> LoadedModel:
    files = expert_files(directory)
    assert files is not None
    return finish(loading(directory, on_disk=(files, slots)))


def weights_of(file: Path) -> dict[str, mx.array]:
    """Return copies of a file's arrays, which may be saved to it."""
    stored: Any = mx.load(str(file))
    weights = {name: mx.array(array) for name, array in stored.items()}
    mx.eval(weights)
    return weights


def stored_one_by_one(directory: Path) -> None:
    """Store the experts of a saved model in tensors of their own, as Hugging Face's models do."""
    file = directory / "model.safetensors"
    weights, stored = dict[str, mx.array](), weights_of(file)
    for name, array in stored.items():
        block, is_stacked, rest = name.partition(".switch_mlp.")
        if not is_stacked:
            weights[name] = array
            continue
        projection, _, kind = rest.partition(".")
        if "block_sparse_moe" in block:
            projection = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}[projection]
        for number in range(array.shape[0]):
            weights[f"{block}.experts.{number}.{projection}.{kind}"] = array[number]
    mx.eval(weights)
    mx.save_safetensors(str(file), weights, metadata={"format": "mlx"})


def quantised_tiny(directory: Path, family: str, mode: str) -> None:
    tiny_models.save_tiny(directory, family)
    model = open_lazily(directory)
    bits, group_size = 4, 32
    nn.quantize(model, group_size=group_size, bits=bits, mode=mode)
    leaves: Any = tree_flatten(model.parameters())
    weights = dict(leaves)
    mx.eval(weights)
    mx.save_safetensors(str(directory / "model.safetensors"), weights)
    config = json.loads((directory / "config.json").read_bytes())
    config["quantization"] = {"bits": bits, "group_size": group_size, "mode": mode}
    (directory / "config.json").write_text(json.dumps(config))


def array_bytes(model: nn.Module) -> int:
    leaves: Any = tree_flatten(model.parameters())
    return sum(array.nbytes for _, array in leaves)
