"""Decode and prefill on caches of several kinds, by turns: each round measures all of them, moments
apart, beginning with another one each time."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.model.loader import LoadedModel
from scripts.benchmarks.kv_quality import chunks
from scripts.benchmarks.kv_variants import PLAIN, FreshCaches, Variant

Rounds = list[dict[Variant, float]]
"""For each round, tokens per second of each variant."""

_WARM_UP = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """A batch that decodes: its caches hold `context` tokens a row."""

    caches: Caches
    streams: int

    def step(self, loaded: LoadedModel, tokens: mx.array) -> mx.array:
        """The next token of each row, [B, 1]."""
        logits = loaded.model(tokens, cache=self.caches)
        chosen = mx.argmax(logits[:, -1:], axis=-1)
        mx.eval(chosen)
        return chosen

    def forget(self, count: int) -> None:
        for leaf in leaves(self.caches):
            leaf.trim(count)


class Speed:
    """One model with caches of each variant, which must all be of a kind that can forget."""

    def __init__(
        self, loaded: LoadedModel, tokens: Sequence[int], variants: Sequence[Variant]
    ) -> None:
        self._loaded = loaded
        self._tokens = tokens
        self._variants = tuple(variants)
        self._fresh = FreshCaches(loaded, variants)
        if not all(leaf.is_trimmable() for leaf in leaves(self._fresh.of(PLAIN))):
            raise ValueError("speed is measured on models whose caches can all forget tokens")

    def decode(self, context: int, streams: int, steps: int, repeats: int) -> Rounds:
        """Each round decodes `steps` tokens a row behind `context` tokens, and forgets them."""
        rows = {variant: self._rows(variant, context, streams) for variant in self._variants}
        for variant in self._variants:
            self._decode(rows[variant], _WARM_UP)
        return self._rounds(repeats, {v: partial(self._decode, rows[v], steps) for v in rows})

    def prefill(self, count: int, streams: int, repeats: int) -> Rounds:
        """Each round reads `count` tokens in the server's chunks. Several streams are read in one
        forward, as the server does with short prompts."""
        runs = {v: partial(self._prefill, v, count, streams) for v in self._variants}
        return self._rounds(repeats, runs)

    def _rounds(self, repeats: int, runs: Mapping[Variant, Callable[[], float]]) -> Rounds:
        rounds = []
        for number in range(repeats):
            first = number % len(self._variants)
            order = (*self._variants[first:], *self._variants[:first])
            rounds.append({variant: runs[variant]() for variant in order})
        return rounds

    def _rows(self, variant: Variant, context: int, streams: int) -> _Rows:
        caches = self._prefilled(variant, context, 1)
        if streams > 1:
            caches = cache_ops.merge([caches] * streams)
        return _Rows(caches, streams)

    def _prefilled(self, variant: Variant, count: int, streams: int) -> Caches:
        caches = self._fresh.of(variant)
        if streams > 1:
            caches = cache_ops.merge([caches] * streams)
        repeated = -(-count // len(self._tokens))
        tokens = (list(self._tokens) * repeated)[:count]
        for start, stop in chunks(count):
            self._loaded.model(mx.array([tokens[start:stop]] * streams), cache=caches)
            cache_ops.evaluate(caches, wait=True)
        return caches

    def _prefill(self, variant: Variant, count: int, streams: int) -> float:
        """Tokens per second."""
        begun = time.perf_counter()
        self._prefilled(variant, count, streams)
        return streams * count / (time.perf_counter() - begun)

    def _decode(self, rows: _Rows, steps: int) -> float:
        """Tokens per second."""
        tokens = mx.zeros((rows.streams, 1), mx.int32)
        begun = time.perf_counter()
        for _ in range(steps):
            tokens = rows.step(self._loaded, tokens)
        seconds = time.perf_counter() - begun
        rows.forget(steps)
        return rows.streams * steps / seconds
