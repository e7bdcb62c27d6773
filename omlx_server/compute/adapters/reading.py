"""Reads an adapter's weights, and checks them against the model. Mlx thread."""

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from omlx_server.compute.hardware import device
from omlx_server.core.adapters import CONFIG, SIDES, WEIGHTS, Adapter, digest_of
from omlx_server.core.work import Work
from omlx_server.errors import AdapterUnusable

_PIECE_BYTES = 16 << 20
_CHANGED = "its files have just changed"


# One adapter's a float32 [in, rank] and b float32 [rank, out], by layer path.
Matrices = Mapping[str, tuple[mx.array, mx.array]]

SLICE_BYTES = 32 << 20  # of stacks made in one slice of the work
_F32 = 4


@dataclass(frozen=True, slots=True, eq=False)
class AdapterStack:
    """The matrices of all adapters for one layer, and the digests of those that change it."""

    a: mx.array
    b: mx.array
    digests: frozenset[bytes]

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes

    @property
    def slot_bytes(self) -> int:
        return self.nbytes // self.a.shape[0]

    @property
    def token_bytes(self) -> int:
        """Bytes per token: float32 input, inner product, sums, cast."""
        (_, width_in, rank), width_out = self.a.shape, self.b.shape[2]
        return 4 * width_in + 4 * rank + 12 * width_out


@dataclass(frozen=True, slots=True, eq=False)
class RankGroup:
    """The stacks of all adapters of one rank, by layer path. Immutable."""

    rank: int
    adapters: tuple[Adapter, ...] = ()
    stacks: Mapping[str, AdapterStack] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(stack.nbytes for stack in self.stacks.values())

    def nbytes_with(self, adapter: Adapter) -> int:
        """Return the bytes with one more adapter."""
        slot_bytes = {path: stack.slot_bytes for path, stack in self.stacks.items()}
        slot_bytes |= {path: _F32 * sum(map(prod, pair)) for path, pair in adapter.shapes.items()}
        slots = 1 + len(self.adapters) + 1  # the first is zeros
        return slots * sum(slot_bytes.values())

    def nbytes_without(self, adapter: Adapter) -> int:
        """Return the bytes without one of the adapters."""
        kept = (stack for stack in self.stacks.values() if stack.digests - {adapter.digest})
        return len(self.adapters) * sum(stack.slot_bytes for stack in kept)

    def joined(self, adapter: Adapter, matrices: Matrices) -> "Work[RankGroup]":
        """Return the group with one more adapter, in slices."""
        paths = {**self.stacks, **matrices}
        stacks = yield from _computing(
            (path, self._joined_stack(path, adapter, matrices)) for path in paths
        )
        return RankGroup(self.rank, (*self.adapters, adapter), stacks)

    def _joined_stack(self, path: str, adapter: Adapter, matrices: Matrices) -> AdapterStack:
        slots, old, new = 1 + len(self.adapters), self.stacks.get(path), matrices.get(path)
        a = _with_slot(old.a if old else None, new[0] if new else None, slots)
        b = _with_slot(old.b if old else None, new[1] if new else None, slots)
        digests = old.digests if old else frozenset()
        return AdapterStack(a, b, digests | {adapter.digest} if new else digests)

    def without(self, adapter: Adapter) -> "Work[RankGroup]":
        """Return the group without one of its adapters, in slices."""
        removed = 1 + self.adapters.index(adapter)
        slots = mx.array([slot for slot in range(1 + len(self.adapters)) if slot != removed])
        stacks = yield from _computing(
            (path, AdapterStack(old.a[slots], old.b[slots], old.digests - {adapter.digest}))
            for path, old in self.stacks.items()
            if old.digests - {adapter.digest}
        )
        adapters = tuple(other for other in self.adapters if other != adapter)
        return RankGroup(self.rank, adapters, stacks)

    def slots_of(self, adapters: Sequence[Adapter | None]) -> "RowSlots | None":
        """Return the rows' slots; None where no row has an adapter of this group."""
        slot_of = {adapter: slot for slot, adapter in enumerate(self.adapters, 1)}
        slots = [slot_of.get(adapter, 0) if adapter else 0 for adapter in adapters]
        if not any(slots):
            return None
        scales = [self.adapters[slot - 1].scale if slot else 0.0 for slot in slots]
        return RowSlots(
            self,
            mx.array(slots, dtype=mx.uint32),
            mx.array(scales, dtype=mx.float32)[:, None, None],
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowSlots:
    """The rows' slots uint32 [B] and scales float32 [B, 1, 1] in a `group`."""

    group: RankGroup
    slots: mx.array
    scales: mx.array


class AdaptedLinear:
    """A linear layer that also applies each row's adapter."""

    def __init__(self, linear: nn.Module, stacks: Sequence[tuple[AdapterStack, RowSlots]]) -> None:
        self._linear = linear
        self._stacks = stacks

    def __call__(self, x: mx.array) -> mx.array:
        """Return the output for `x` [B, ..., in] plus each row's adapter, in float32."""
        y: mx.array = self._linear(x)
        for stack, rows in self._stacks:
            flat = x.reshape(rows.slots.size, -1, x.shape[-1]).astype(mx.float32)
            z = mx.gather_mm(flat, stack.a, rhs_indices=rows.slots)
            z = mx.gather_mm(z, stack.b, rhs_indices=rows.slots)
            y = y + (rows.scales * z).astype(x.dtype).reshape(y.shape)
        return y


def _computing(stacks: Iterable[tuple[str, AdapterStack]]) -> Work[dict[str, AdapterStack]]:
    """Evaluate lazy stacks, in slices, and return them by layer path."""
    by_path, started, nbytes = dict[str, AdapterStack](), list[mx.array](), 0
    for path, stack in stacks:
        by_path[path] = stack
        started += [stack.a, stack.b]
        nbytes += stack.nbytes
        if nbytes >= SLICE_BYTES:
            device.wait_for(started)
            started, nbytes = [], 0
            yield
    device.wait_for(started)
    return by_path


def _with_slot(old: mx.array | None, new: mx.array | None, slots: int) -> mx.array:
    """Return `old` [slots, ...] with `new` in one more slot; None are zeros."""
    like: Any = new if old is None else old[0]
    old_slots = mx.zeros((slots, *like.shape)) if old is None else old
    new_slot = mx.zeros(like.shape) if new is None else new
    return mx.concatenate([old_slots, new_slot[None]])


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
