"""Stand-ins for arrays that our caches hand to a model."""

from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.kv.schemes.base import Arrays, Scheme
from omlx_server.compute.kv.spans import Spans


@dataclass(frozen=True, slots=True, eq=False)
class PackedKV:
    """Keys or values of one sequence: its stored `arrays`, behind `spans`.

    The model passes them to its attention, where our hook reads them (compute/kv/dispatch.py).
    `dtype` is the dtype of the keys before they were stored.
    """

    arrays: Arrays
    scheme: Scheme
    dtype: mx.Dtype
    spans: Spans = ()

    def astype(self, dtype: mx.Dtype) -> "PackedKV":
        """Return self: attention computes in the dtype of its queries."""
        return self
