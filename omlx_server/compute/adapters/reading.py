"""Reads an adapter's weights, and checks them against the model. Mlx thread."""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from omlx_server.compute.adapters.stacks import Matrices
from omlx_server.core.adapters import CONFIG, SIDES, WEIGHTS, Adapter, digest_of
from omlx_server.core.work import Work
from omlx_server.errors import AdapterUnusable

_PIECE = 16 << 20
_CHANGED = "its files have just changed"


def reading(adapter: Adapter) -> Work[Matrices]:
    """Read an adapter's matrices, in slices. Raises AdapterUnusable."""
    try:
        config = (adapter.path / CONFIG).read_bytes()
        content, digest = yield from _content(adapter.path / WEIGHTS)
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


def unusable(adapter: Adapter, why: str) -> AdapterUnusable:
    return AdapterUnusable(f"the adapter '{adapter.name}' can't be used: {why}", param="adapter")


def _content(file: Path) -> Work[tuple[io.BytesIO, bytes]]:
    content, digest = io.BytesIO(), hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(_PIECE):
            content.write(piece)
            digest.update(piece)
            yield
    content.seek(0)
    return content, digest.digest()


def check_shapes(adapter: Adapter, model: nn.Module) -> None:
    """Raise AdapterUnusable for matrices that don't fit the model."""
    for path, (a, b) in adapter.shapes.items():
        inner, outer = sizes_of(adapter, place_of(adapter, model, path).layer, path)
        needed = (inner, adapter.rank), (adapter.rank, outer)
        if (a, b) != needed:
            raise unusable(
                adapter, f"{path} has {a} and {b}; the model needs {needed[0]} and {needed[1]}"
            )


def _matrices(adapter: Adapter, arrays: Mapping[str, mx.array]) -> Matrices:
    matrices = dict[str, tuple[mx.array, mx.array]]()
    for path, shapes in adapter.shapes.items():
        a, b = (arrays[f"{path}.{side}"].astype(mx.float32) for side in SIDES)
        if (a.shape, b.shape) != shapes:
            raise KeyError(path)
        matrices[path] = a, b
    return matrices


class LayerEntry:
    def __init__(self, parent: dict[str, object] | list[object], name: str) -> None:
        self._parent = parent
        self._key: str | int = name if isinstance(parent, dict) else _index(name)
        self.layer = self._get()

    def _get(self) -> object:
        return self._parent[self._key]  # type: ignore[index]

    def replace(self, layer: object) -> None:
        self._parent[self._key] = layer  # type: ignore[index]

    def restore(self) -> None:
        self.replace(self.layer)


def _index(name: str) -> int:
    if not (name.isdecimal() and name == str(int(name))):
        raise ValueError(name)
    return int(name)


def place_of(adapter: Adapter, model: nn.Module, path: str) -> LayerEntry:
    """Return the layer at a dotted `path`. Raises AdapterUnusable."""
    node: object = model
    *above, name = path.split(".")
    try:
        for part in above:
            node = LayerEntry(node, part).layer  # type: ignore[arg-type]
        return LayerEntry(node, name)  # type: ignore[arg-type]
    except (KeyError, IndexError, ValueError, TypeError):
        raise unusable(adapter, f"the model has no layer {path[:200]}") from None


def sizes_of(adapter: Adapter, layer: object, path: str) -> tuple[int, int]:
    """Return the input and output widths of a linear layer. Raises AdapterUnusable."""
    if isinstance(layer, nn.QuantizedLinear):
        outer, groups = layer.scales.shape
        return groups * layer.group_size, outer
    if isinstance(layer, nn.Linear):
        outer, inner = layer.weight.shape
        return inner, outer
    what = type(layer).__name__
    if isinstance(layer, SwitchLinear | QuantizedSwitchLinear):
        what = "the experts of a mixture"
    raise unusable(adapter, f"{path} is no linear layer, but {what}, which can't have adapters")
