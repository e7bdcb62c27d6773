"""Reads the weights of an adapter, and checks them against the model. Runs on the mlx thread."""

import hashlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from omlx_server.compute.adapters.stacks import Matrices
from omlx_server.core.adapters import CONFIG, WEIGHTS, Adapter, digest_of
from omlx_server.core.work import Work
from omlx_server.errors import AdapterUnusable

_PIECE = 16 << 20
_SIDES = ("lora_a", "lora_b")


def reading(adapter: Adapter, model: nn.Module) -> Work[Matrices]:
    """Reads the matrices of an adapter of `model`, in slices.

    Raises:
        AdapterUnusable: they can't be read, are not those of the digest, or don't fit the model.
    """
    try:
        config = (adapter.path / CONFIG).read_bytes()
        content, digest = yield from _content(adapter.path / WEIGHTS)
        if digest_of(config, digest) != adapter.digest:
            raise unusable(adapter, "its files have just changed")
        arrays = mx.load(content, format="safetensors")
    except (OSError, RuntimeError, ValueError) as error:
        raise unusable(adapter, f"it can't be read: {error}") from error
    assert isinstance(arrays, dict)
    return _checked(adapter, model, arrays)


def unusable(adapter: Adapter, why: str) -> AdapterUnusable:
    """The error that an adapter can't be used."""
    return AdapterUnusable(f"the adapter '{adapter.name}' can't be used: {why}", param="adapter")


def _content(file: Path) -> Work[tuple[io.BytesIO, bytes]]:
    """A file's bytes, and their SHA-256: what is loaded is what the digest is of."""
    content, digest = io.BytesIO(), hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(_PIECE):
            content.write(piece)
            digest.update(piece)
            yield
    content.seek(0)
    return content, digest.digest()


def _checked(adapter: Adapter, model: nn.Module, arrays: Mapping[str, mx.array]) -> Matrices:
    found = dict[str, tuple[mx.array, mx.array]]()
    for path in _paths(adapter, arrays):
        pair = [arrays.get(f"{path}.{side}") for side in _SIDES]
        a, b = (array.astype(mx.float32) if array is not None else None for array in pair)
        if a is None or b is None:
            raise unusable(adapter, f"one of the two matrices of {path} is missing")
        inner, outer = sizes_of(adapter, place_of(adapter, model, path).layer, path)
        if a.shape != (inner, adapter.rank) or b.shape != (adapter.rank, outer):
            raise unusable(
                adapter,
                f"{path} has {a.shape} and {b.shape}; the model needs {(inner, adapter.rank)} "
                f"and {(adapter.rank, outer)}",
            )
        found[path] = a, b
    return found


def _paths(adapter: Adapter, names: Iterator[str] | Mapping[str, mx.array]) -> list[str]:
    paths = dict[str, None]()
    for name in names:
        path, _, side = name.rpartition(".")
        if side not in _SIDES:
            raise unusable(adapter, f"{name[:200]} is no matrix of LoRA")
        paths[path] = None
    if not paths:
        raise unusable(adapter, "it has no matrices")
    return list(paths)


class Place:
    """A layer of a model: what stands under a name in its parent."""

    def __init__(self, parent: dict[str, object] | list[object], name: str) -> None:
        self._parent = parent
        self._key: str | int = name if isinstance(parent, dict) else int(name)
        self.layer = self._get()

    def _get(self) -> object:
        return self._parent[self._key]  # type: ignore[index]

    def put(self, layer: object) -> None:
        """Have another layer stand there."""
        self._parent[self._key] = layer  # type: ignore[index]

    def restore(self) -> None:
        """Have the model's own layer stand there again."""
        self.put(self.layer)


def place_of(adapter: Adapter, model: nn.Module, path: str) -> Place:
    """The layer of a model at a `path` of names with dots. Raises AdapterUnusable if there is
    none."""
    node: object = model
    *above, name = path.split(".")
    try:
        for part in above:
            node = Place(node, part).layer  # type: ignore[arg-type]
        return Place(node, name)  # type: ignore[arg-type]
    except (KeyError, IndexError, ValueError, TypeError):
        raise unusable(adapter, f"the model has no layer {path[:200]}") from None


def sizes_of(adapter: Adapter, layer: object, path: str) -> tuple[int, int]:
    """The widths of the input and the output of a linear layer. Raises AdapterUnusable for any
    other layer."""
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
