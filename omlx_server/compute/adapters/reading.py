"""Reads an adapter's weights, and checks them against the model. Mlx thread."""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from omlx_server.compute.adapters.stacks import Matrices
from omlx_server.core.adapters import CONFIG, SIDES, WEIGHTS, Adapter, digest_of
from omlx_server.core.work import Work
from omlx_server.errors import AdapterUnusable

_PIECE_BYTES = 16 << 20
_CHANGED = "its files have just changed"


def reading(adapter: Adapter) -> Work[Matrices]:
    """Read an adapter's matrices, in slices. Raises AdapterUnusable."""
    try:
        config = (adapter.path / CONFIG).read_bytes()
        content, digest = yield from _reading_file(adapter.path / WEIGHTS)
        if digest_of(config, digest) != adapter.digest:
            raise unusable(adapter, _CHANGED)
        arrays = mx.load(content, format="safetensors")
    except (OSError, RuntimeError, ValueError) as error:
        raise unusable(adapter, f"it can't be read: {error}") from error
    assert isinstance(arrays, dict)
    try:
        return _matrices(adapter, arrays)
    except KeyError:
        raise unusable(adapter, _CHANGED) from None


def _reading_file(file: Path) -> Work[tuple[io.BytesIO, bytes]]:
    """Return a file's content and its digest, in slices."""
    content, digest = io.BytesIO(), hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(_PIECE_BYTES):
            content.write(piece)
            digest.update(piece)
            yield
    content.seek(0)
    return content, digest.digest()


def _matrices(adapter: Adapter, arrays: Mapping[str, mx.array]) -> Matrices:
    """Return the matrices as float32. Raises KeyError for missing ones and other shapes."""
    matrices = dict[str, tuple[mx.array, mx.array]]()
    for path, shapes in adapter.shapes.items():
        a, b = (arrays[f"{path}.{side}"].astype(mx.float32) for side in SIDES)
        if (a.shape, b.shape) != shapes:
            raise KeyError(path)
        matrices[path] = a, b
    return matrices


def unusable(adapter: Adapter, why: str) -> AdapterUnusable:
    return AdapterUnusable(f"the adapter '{adapter.name}' can't be used: {why}", param="adapter")


def check_shapes(adapter: Adapter, model: nn.Module) -> None:
    """Raise AdapterUnusable for matrices that don't fit the model."""
    for path, (a, b) in adapter.shapes.items():
        width_in, width_out = _widths(adapter, find_layer(adapter, model, path).layer, path)
        needed_a, needed_b = (width_in, adapter.rank), (adapter.rank, width_out)
        if (a, b) != (needed_a, needed_b):
            raise unusable(
                adapter, f"{path} has {a} and {b}; the model needs {needed_a} and {needed_b}"
            )


class LayerEntry:
    """A layer in its parent module or list, where another can take its place."""

    def __init__(self, parent: Any, name: str) -> None:
        self._parent = parent
        self._key = name if isinstance(parent, dict) else _list_index(name)
        self.layer: Any = self._parent[self._key]

    def replace(self, layer: object) -> None:
        self._parent[self._key] = layer

    def restore(self) -> None:
        self.replace(self.layer)


def _list_index(name: str) -> int:
    if not (name.isdecimal() and name == str(int(name))):
        raise ValueError(name)
    return int(name)


def find_layer(adapter: Adapter, model: nn.Module, path: str) -> LayerEntry:
    """Return the layer at a dotted `path`. Raises AdapterUnusable."""
    parent: Any = model
    *above, name = path.split(".")
    try:
        for step in above:
            parent = LayerEntry(parent, step).layer
        return LayerEntry(parent, name)
    except (KeyError, IndexError, ValueError, TypeError):
        raise unusable(adapter, f"the model has no layer {path[:200]}") from None


def _widths(adapter: Adapter, layer: object, path: str) -> tuple[int, int]:
    """Return the input and output widths of a linear layer. Raises AdapterUnusable."""
    if isinstance(layer, nn.QuantizedLinear):
        width_out, groups = layer.scales.shape
        return groups * layer.group_size, width_out
    if isinstance(layer, nn.Linear):
        width_out, width_in = layer.weight.shape
        return width_in, width_out
    what = type(layer).__name__
    if isinstance(layer, SwitchLinear | QuantizedSwitchLinear):
        what = "the experts of a mixture"
    raise unusable(adapter, f"{path} is no linear layer, but {what}, which can't have adapters")
