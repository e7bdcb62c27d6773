"""What a cache of full attention stores, and who knows how to read it."""

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from omlx_server.compute.kv.partial import Partial

Arrays = tuple[mx.array, ...]
Mask = mx.array | str | None


class Scheme(Protocol):
    """A way to hold keys and values, as they came or in few bits. Stateless: one object serves all
    layers.

    Every stored array is [B, H, T, features], and what it holds of a token depends on that token
    alone. Zeros are a legal token: what follows a row's tokens in its buffers, masked, is zeros or
    was a token. Keys and values come as equally many arrays.
    """

    @property
    def name(self) -> str:
        """Everything that the stored bytes depend on: part of the namespace of blocks."""

    def check(self, head_dim: int) -> None:
        """ValueError, in plain words, when heads of this size can't have it."""

    def quantize_keys(self, x: mx.array) -> Arrays:
        """Keys [B, H, T, D] after RoPE, as they are stored."""

    def quantize_values(self, x: mx.array) -> Arrays:
        """Values [B, H, T, D] as they are stored."""

    def attend(
        self,
        queries: mx.array,
        keys: Arrays,
        values: Arrays,
        *,
        scale: float,
        mask: Mask,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """Queries [B, Hq, L, D] on the stored tokens: [B, Hq, L, Dv] in their dtype. The mask is
        None, "causal" (the queries are the last L tokens), boolean (True is seen) or added, and
        broadcasts to [B, Hq, L, T]. `sinks` [Hq] are the scores of one more token, which every
        query sees and whose value is 0. Changes no argument."""

    def part(
        self,
        queries: mx.array,
        keys: Arrays,
        values: Arrays,
        *,
        scale: float,
        mask: Mask,
        sinks: mx.array | None = None,
    ) -> Partial:
        """As `attend`, of some of a row's tokens: to be merged with its other parts and given to
        `finished`. Sinks belong to one of the parts only."""

    def finished(self, part: Partial, dtype: mx.Dtype) -> mx.array:
        """What `attend` gives, in this dtype, of all parts of the queries' tokens merged."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedKV:
    """Keys or values as a cache hands them to a model: not an array, so whoever takes them for one
    fails at once. The model passes them on to its attention, where we meet them. `dtype` is that of
    the numbers that the model has given."""

    arrays: Arrays
    scheme: Scheme
    dtype: mx.Dtype

    def astype(self, dtype: mx.Dtype) -> "PackedKV":
        """As they are: attention computes in the type of its queries (phi and stablelm give float32
        ones)."""
        return self
