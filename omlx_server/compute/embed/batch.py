"""Batches of inputs, and the work on them in slices. Mlx thread."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from omlx_server.core.encoded import TokenizedText
from omlx_server.core.memory.encoder import EncoderShape


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Inputs padded on the right: `ids` and token `types` int32 [B, L], `lengths` int32 [B]."""

    ids: mx.array
    types: mx.array
    lengths: mx.array
    padded: bool

    @classmethod
    def of(cls, inputs: Sequence[TokenizedText], pad_id: int) -> "Batch":
        lengths = [len(one) for one in inputs]
        width = max(lengths)
        ids = [[*one.ids, *[pad_id] * (width - len(one))] for one in inputs]
        types = [[*one.types, *[0] * (width - len(one.types))] for one in inputs]
        padded = min(lengths) < width
        return cls(mx.array(ids), mx.array(types), mx.array(lengths), padded)

    @property
    def size(self) -> int:
        return int(self.ids.size)

    def token_mask(self) -> mx.array:
        """Return bool [B, L], False for padding."""
        return mx.arange(self.ids.shape[1]) < self.lengths[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class BatchResult:
    """Evaluated results of the inputs at `indices`: float32 [n, D] or [n]."""

    indices: tuple[int, ...]
    values: mx.array


BatchWork = Iterator[BatchResult | None]
"""An item per slice, None without a result; the mlx thread does other work in between."""
Forward = Generator[None, None, mx.array]
"""Work on one batch, which yields between slices and returns [B, L, H] or a head's results."""
Numbers = NDArray[np.float32]


class Backbone(Protocol):
    """A transformer without its head."""

    def run(self, batch: Batch, slice_tokens: int) -> Forward:
        """Compute a batch, at most `slice_tokens` tokens in one slice."""

    def shallow(self, layers: int) -> "Backbone":
        """Return a backbone of the first layers, which shares the weights."""

    def shape(self, width: int) -> EncoderShape:
        """Return the sizes for memory plans; numbers have `width` bytes."""


def gather_results(make: Callable[[], BatchWork], count: int) -> Generator[None, None, Numbers]:
    """Do the work of `make`, one slice per yield, and return [count, D] or [count]."""
    values: dict[int, Numbers] = {}
    for result in make():
        if result is not None:
            values.update(zip(result.indices, np.array(result.values), strict=True))
        yield
    return np.stack([values[index] for index in range(count)])
