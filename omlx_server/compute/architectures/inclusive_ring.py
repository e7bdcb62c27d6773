"""A ring for models whose prefill looks one token further back than their decode."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache


class InclusiveRing(RotatingKVCache):  # type: ignore[misc]
    """A ring of `max_size` tokens. A token of a prefill also attends to the one before them.

    plamo3 masks a prefill with `window + 1` and decodes on a ring of `window`. On the ring of
    mlx-lm the first token of every chunk but the first misses its oldest key, so that the logits
    depend on where chunks begin. Here they do not: they are those of one chunk.

    It starts in a prefill and decodes after `begin_decode`. It becomes the ordinary batch form,
    which is for decoding only.
    """

    decodes = False

    def begin_decode(self) -> None:
        self.decodes = True

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self.decodes:
            return super().update_and_fetch(keys, values)  # type: ignore[no-any-return]
        with self._one_wider():
            return self._update_concat(keys, values)  # type: ignore[no-any-return]

    def make_mask(self, N: int, *args: Any, **options: Any) -> mx.array | str | None:
        if self.decodes:
            return super().make_mask(N, *args, **options)  # type: ignore[no-any-return]
        with self._one_wider():
            return super().make_mask(N, *args, **options)  # type: ignore[no-any-return]

    @contextmanager
    def _one_wider(self) -> Iterator[None]:
        self.max_size += 1
        try:
            yield
        finally:
            self.max_size -= 1
