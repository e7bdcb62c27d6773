"""The interface of schemes."""

from typing import ClassVar, NotRequired, TypedDict, Unpack

import mlx.core as mx

from omlx_server.compute.kv.schemes.partial import Partial

Arrays = tuple[mx.array, ...]
Mask = mx.array | str | None


class Scoring(TypedDict):
    """Options of attention."""

    scale: float
    # [B, Hq, L, T], boolean (True is seen) or added; or "causal": queries are the last L tokens.
    mask: Mask
    sinks: NotRequired[mx.array | None]  # scores [Hq] of one more token, of value 0


def views(arrays: Arrays, start: int, stop: int | None, row: int | None = None) -> Arrays:
    """Return views of tokens [start, stop) of arrays [R, H, T, F]."""
    rows = slice(row, None if row is None else row + 1)
    return tuple(array[rows, :, start:stop] for array in arrays)


class Scheme:
    """A stateless way to store keys and values in arrays [B, H, T, F], and attention on it. A
    token's part depends on that token alone. Attention must stay finite on hidden places."""

    is_fused: ClassVar[bool] = False  # `attend` is a kernel, for many queries faster than `part`

    @property
    def name(self) -> str:
        """Names all that the stored bytes depend on."""
        raise NotImplementedError

    def check(self, head_dim: int) -> None:
        """Raise ValueError for head sizes that cannot be stored."""

    def quantize(self, keys: mx.array, values: mx.array) -> tuple[Arrays, Arrays]:
        """Return the arrays to store, bit for bit those of the next two functions."""
        return self.quantize_keys(keys), self.quantize_values(values)

    def quantize_keys(self, x: mx.array) -> Arrays:
        """Return the arrays to store for keys [B, H, T, D] after RoPE."""
        raise NotImplementedError

    def quantize_values(self, x: mx.array) -> Arrays:
        """Return the arrays to store for values [B, H, T, D]."""
        raise NotImplementedError

    def attend(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> mx.array:
        """Attend queries [B, Hq, L, D]: [B, Hq, L, Dv] in the queries' dtype."""
        raise NotImplementedError

    def part(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> Partial:
        """Attend to some of a row's tokens. Sinks belong to one part only."""
        raise NotImplementedError

    def answer(self, merged: Partial, dtype: mx.Dtype) -> mx.array:
        """Return attention [B, Hq, L, Dv] from the merged parts of all tokens."""
        return merged.answer().astype(dtype)
