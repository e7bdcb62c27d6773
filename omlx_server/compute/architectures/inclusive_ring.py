"""A ring for plamo3, whose prefill attends to one token more than its decode."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache


class InclusiveRing(RotatingKVCache):  # type: ignore[misc]
    """A ring of `max_size` tokens for a decode, and of one more for a prefill, until
    `begin_decode`. Merging makes mlx-lm's batch form, for decoding only."""

    decodes = False

    def begin_decode(self) -> None:
        self.decodes = True

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self.decodes:
            return super().update_and_fetch(keys, values)  # type: ignore[no-any-return]
        with self._one_token_wider():
            return self._update_concat(keys, values)  # type: ignore[no-any-return]

    def make_mask(self, N: int, *args: Any, **options: Any) -> mx.array | str | None:
        if self.decodes:
            return super().make_mask(N, *args, **options)  # type: ignore[no-any-return]
        with self._one_token_wider():
            return super().make_mask(N, *args, **options)  # type: ignore[no-any-return]

    @contextmanager
    def _one_token_wider(self) -> Iterator[None]:
        self.max_size += 1
        try:
            yield
        finally:
            self.max_size -= 1
