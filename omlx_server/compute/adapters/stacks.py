"""The weights of adapters of one rank, stacked so that one kernel takes each row's own.

    rows        none    adapter 1    adapter 2          slot 0 is zeros: a row without an adapter
    slot        0       1            2
    a           [slots, in, rank]                       float32; zeros in layers that an adapter
    b           [slots, rank, out]                      does not change
    scales      [slots, 1, 1]

Padding other ranks to this one could change a row's numbers by its neighbours.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.hardware import device
from omlx_server.core.adapters import Adapter
from omlx_server.core.work import Work

# One adapter's a float32 [in, rank] and b float32 [rank, out], by layer path.
Matrices = Mapping[str, tuple[mx.array, mx.array]]

SLICE_BYTES = 32 << 20  # of stacks made in one slice of the work
_F32 = 4


@dataclass(frozen=True, slots=True, eq=False)
class AdapterStack:
    a: mx.array
    b: mx.array
    having: frozenset[bytes]

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes

    @property
    def slot_bytes(self) -> int:
        return self.nbytes // self.a.shape[0]

    @property
    def token_bytes(self) -> int:
        """Bytes per token: float32 input, inner product, sums, cast."""
        (_, inner, rank), outer = self.a.shape, self.b.shape[2]
        return 4 * inner + 4 * rank + 12 * outer


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
        slots = {path: stack.slot_bytes for path, stack in self.stacks.items()}
        slots |= {path: _F32 * sum(map(prod, pair)) for path, pair in adapter.shapes.items()}
        return (2 + len(self.adapters)) * sum(slots.values())

    def nbytes_without(self, adapter: Adapter) -> int:
        left = (stack for stack in self.stacks.values() if stack.having - {adapter.digest})
        return len(self.adapters) * sum(stack.slot_bytes for stack in left)

    def joined(self, adapter: Adapter, matrices: Matrices) -> "Work[RankGroup]":
        """Return the group with one more adapter, in slices."""
        paths = {**self.stacks, **matrices}
        stacks = yield from _compute(
            (path, self._joined(path, adapter, matrices)) for path in paths
        )
        return RankGroup(self.rank, (*self.adapters, adapter), stacks)

    def _joined(self, path: str, adapter: Adapter, matrices: Matrices) -> AdapterStack:
        count, old, new = 1 + len(self.adapters), self.stacks.get(path), matrices.get(path)
        a = _with_slot(old.a if old else None, new[0] if new else None, count)
        b = _with_slot(old.b if old else None, new[1] if new else None, count)
        having = old.having if old else frozenset()
        return AdapterStack(a, b, having | {adapter.digest} if new else having)

    def without(self, adapter: Adapter) -> "Work[RankGroup]":
        slot = 1 + self.adapters.index(adapter)
        slots = mx.array([at for at in range(1 + len(self.adapters)) if at != slot])
        stacks = yield from _compute(
            (path, AdapterStack(old.a[slots], old.b[slots], old.having - {adapter.digest}))
            for path, old in self.stacks.items()
            if old.having - {adapter.digest}
        )
        left = tuple(other for other in self.adapters if other != adapter)
        return RankGroup(self.rank, left, stacks)

    def slots_of(self, adapters: Sequence[Adapter | None]) -> "RowSlots | None":
        """Return the rows' slots; None where no row has an adapter of this group."""
        slots = {adapter: slot for slot, adapter in enumerate(self.adapters, 1)}
        indices = [slots.get(adapter, 0) if adapter else 0 for adapter in adapters]
        if not any(indices):
            return None
        scales = [self.adapters[index - 1].scale if index else 0.0 for index in indices]
        return RowSlots(
            self,
            mx.array(indices, dtype=mx.uint32),
            mx.array(scales, dtype=mx.float32)[:, None, None],
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowSlots:
    """The rows' slots uint32 [B] and scales float32 [B, 1, 1] in a `group`."""

    group: RankGroup
    slots: mx.array
    scales: mx.array


class AdaptedLinear:
    def __init__(self, linear: nn.Module, parts: Sequence[tuple[AdapterStack, RowSlots]]) -> None:
        self._linear = linear
        self._parts = parts

    def __call__(self, x: mx.array) -> mx.array:
        """Return the output for `x` [B, ..., in] plus each row's adapter, in float32."""
        y: mx.array = self._linear(x)
        for stack, rows in self._parts:
            flat = x.reshape(rows.slots.size, -1, x.shape[-1]).astype(mx.float32)
            z = mx.gather_mm(flat, stack.a, rhs_indices=rows.slots)
            z = mx.gather_mm(z, stack.b, rhs_indices=rows.slots)
            y = y + (rows.scales * z).astype(x.dtype).reshape(y.shape)
        return y


def _compute(stacks: Iterable[tuple[str, AdapterStack]]) -> Work[dict[str, AdapterStack]]:
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


def _with_slot(old: mx.array | None, new: mx.array | None, count: int) -> mx.array:
    like: Any = new if old is None else old[0]
    first = mx.zeros((count, *like.shape)) if old is None else old
    last = mx.zeros(like.shape) if new is None else new
    return mx.concatenate([first, last[None]])
