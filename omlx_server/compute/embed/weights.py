"""Reads the weights of encoders. Mlx thread."""

from pathlib import Path

import mlx.core as mx

from omlx_server.compute.weights.files import lazy_weights
from omlx_server.errors import ModelUnavailable

# In the files of a model with a head, names of the other weights begin with one of these.
_PREFIXES = ("bert.", "roberta.", "model.")
# Names of TensorFlow's that old conversions kept, and ours for them.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def read_weights(directory: Path) -> dict[str, mx.array]:
    """Return lazy weights by the names of our modules. Raises ModelUnavailable without readable
    files."""
    weights = {_plain(name): array for name, array in lazy_weights(directory).items()}
    if not weights:
        raise ModelUnavailable(f"{directory} has no model*.safetensors")
    return weights


def _plain(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
    return name
