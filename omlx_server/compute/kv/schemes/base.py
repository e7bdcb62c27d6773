"""The interface of schemes, which store and read the keys and values of our full-attention
caches."""

from typing import Protocol

import mlx.core as mx

from omlx_server.compute.kv.schemes.partial import Partial

Arrays = tuple[mx.array, ...]
Mask = mx.array | str | None


class Scheme(Protocol):
    """A way to store keys and values: as the model computes them, or in few bits. Stateless: one
    object may serve several layers.

    Every stored array is [B, H, T, features], and what it holds of a token depends on that token
    alone. Keys are stored in as many arrays as values. Attention must stay finite on places that
    the mask hides: behind a row's tokens its buffers hold zeros or tokens of the past.
    """

    @property
    def name(self) -> str:
        """Names all that the stored bytes depend on. It is part of the namespace of blocks."""

    @property
    def is_fused(self) -> bool:
        """Whether `attend` is a fused kernel of MLX, for many queries faster than `part`."""

    def check(self, head_dim: int) -> None:
        """Raise ValueError, in plain words, when the scheme can't store heads of this size."""

    def quantize(self, keys: mx.array, values: mx.array) -> tuple[Arrays, Arrays]:
        """What `quantize_keys` and `quantize_values` give, bit for bit, of both at once."""

    def quantize_keys(self, x: mx.array) -> Arrays:
        """The arrays to store for keys [B, H, T, D], to which RoPE is already applied."""

    def quantize_values(self, x: mx.array) -> Arrays:
        """The arrays to store for values [B, H, T, D]."""

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
        """Attention of queries [B, Hq, L, D] to the stored tokens: [B, Hq, L, Dv] in the dtype of
        the queries. The mask is None, "causal" (the queries are the last L tokens), boolean (True
        is seen) or added, and broadcasts to [B, Hq, L, T]. `sinks` [Hq] are the scores of one more
        token, which every query sees and whose value is 0. Does not modify its arguments."""

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
