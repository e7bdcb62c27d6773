"""Inputs side by side, and work on them slice by slice. Owned by the mlx thread."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from omlx_server.core.encoded import Encoded
from omlx_server.core.memory.encoder import EncoderShape


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Padded on the right. ids and types [B, L], lengths [B]; `size` = B x L."""

    ids: mx.array
    types: mx.array
    lengths: mx.array
    padded: bool

    @classmethod
    def of(cls, inputs: Sequence[Encoded], pad_id: int) -> "Batch":
        lengths = [len(one) for one in inputs]
        width = max(lengths)
        ids = [[*one.ids, *[pad_id] * (width - len(one))] for one in inputs]
        types = [[*one.types, *[0] * (width - len(one.types))] for one in inputs]
        padded = min(lengths) < width
        return cls(mx.array(ids), mx.array(types), mx.array(lengths), padded)

    @property
    def size(self) -> int:
        return int(self.ids.size)

    def live(self) -> mx.array:
        """True [B, L] where a token is no padding."""
        return mx.arange(self.ids.shape[1]) < self.lengths[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Results of some inputs, evaluated: float32 [n, D] or [n], in the order of `indices`."""

    indices: tuple[int, ...]
    values: mx.array


# One turn does one slice of work, so that the mlx thread can do other work in between.
# None: there is no result yet.
Work = Iterator[Part | None]
# The same inside a model: it yields between slices and returns the last hidden states [B, L, H], or
# what was made of them.
Forward = Generator[None, None, mx.array]
Numbers = NDArray[np.float32]


class Backbone(Protocol):
    """A transformer without its head."""

    def run(self, batch: Batch, slice_tokens: int) -> Forward: ...
    def shallow(self, layers: int) -> "Backbone":
        """Its first layers alone; they share its weights."""
        ...

    def shape(self, width: int) -> EncoderShape:
        """Its dimensions for estimates of memory; a number has `width` bytes."""
        ...


def collect(work: Work, count: int) -> list[mx.array]:
    """Do all the work at once. One array per input, in the order of the inputs."""
    values: dict[int, mx.array] = {}
    for part in work:
        if part is not None:
            values.update(zip(part.indices, part.values, strict=True))
    return [values[i] for i in range(count)]


def gathered(make: Callable[[], Work], count: int) -> Generator[None, None, Numbers]:
    """Results [count, D] or [count], in the order of the inputs, as one array that any thread may
    have; one slice up to each yield.

    `make` is called in the first slice, so that what it raises ends the job as any other error.
    """
    found: dict[int, Numbers] = {}
    for part in make():
        if part is not None:
            found.update(zip(part.indices, np.array(part.values), strict=True))
        yield
    return np.stack([found[index] for index in range(count)])
